//! Links the image by `linker.ld`, position-independent: it runs wherever it was loaded.

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/linker.ld");
    println!("cargo::rerun-if-changed={script}");
    for argument in [
        "-T",
        script,
        "-pie",
        "--no-dynamic-linker",
        "-z",
        "notext",
        "-z",
        "max-page-size=4096",
        "--gc-sections",
    ] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
