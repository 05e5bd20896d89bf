//! Links every guest as a flat, position-independent image.

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machine/bare/link.ld");
    println!("cargo:rerun-if-changed={script}");
    for argument in [
        "-pie",
        "--no-dynamic-linker",
        "-Bsymbolic",
        "-znotext",
        "-znorelro",
        "-zmax-page-size=4096",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rustc-link-arg-bins=-T{script}");
}
