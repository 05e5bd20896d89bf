//! Access that instructions ask for. The words are those of GNU as.

use model_coherence::{Access, intent};

#[test]
fn atomics_ask_to_write_at_once() {
    for (word, name) in [
        (0x885f_7c20, "ldxr w0, [x1]"),
        (0xc85f_fc20, "ldaxr x0, [x1]"),
        (0xc87f_0820, "ldxp x0, x2, [x1]"),
        (0x085f_fc20, "ldaxrb w0, [x1]"),
        (0x88a0_7c22, "cas w0, w2, [x1]"),
        (0xc8e0_fc22, "casal x0, x2, [x1]"),
        (0x4820_7c82, "casp x0, x1, x2, x3, [x4]"),
        (0xb820_0022, "ldadd w0, w2, [x1]"),
        (0xf8e0_3022, "ldsetal x0, x2, [x1]"),
        (0xf820_003f, "stadd x0, [x1]"),
        (0x7820_6022, "ldumaxh w0, w2, [x1]"),
        (0xf820_8022, "swp x0, x2, [x1]"),
        (0x38e0_8022, "swpalb w0, w2, [x1]"),
    ] {
        assert_eq!(intent::access(word, false), Access::Write, "{name}");
    }
}

#[test]
fn loads_ask_to_read() {
    for (word, name) in [
        (0xc8df_fc20, "ldar x0, [x1]"),
        (0xc8df_7c20, "ldlar x0, [x1]"),
        (0xf8bf_c020, "ldapr x0, [x1]"),
        (0xf940_0020, "ldr x0, [x1]"),
        (0xa940_0820, "ldp x0, x2, [x1]"),
        (0xf862_6820, "ldr x0, [x1, x2]"),
        (0x3840_1420, "ldrb w0, [x1], #1"),
        (0x3dc0_0020, "ldr q0, [x1]"),
        (0xf840_8020, "ldur x0, [x1, #8]"),
        (0xf820_0420, "ldraa x0, [x1]"),
    ] {
        assert_eq!(intent::access(word, false), Access::Read, "{name}");
        assert_eq!(intent::access(word, true), Access::Write, "{name}");
    }
}
