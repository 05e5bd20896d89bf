//! `clear_page` and `copy_page` of Debian's kernels.

use model_trap::overwrite::Overwrite;

/// A function of a kernel: its words, and which of them is the first store of its loop.
pub struct Function {
    pub name: &'static str,
    pub words: &'static [u32],
    pub store: usize,
    pub kind: Overwrite,
}

/// From 6.1.0-56, 6.12.117+deb13 and 7.2.13+deb14, all arm64; `stnp` of CPUs without `dc zva` cut.
pub const FUNCTIONS: [Function; 6] = [
    Function {
        name: "clear_page, 6.1",
        words: &[
            0xd503_245f, // bti c
            0xd53b_00e1, // mrs x1, dczid_el0
            0x3720_0121, // tbnz w1, #4
            0x1200_0c21, // and w1, w1, #0xf
            0xd280_0082, // mov x2, #4
            0x9ac1_2041, // lsl x1, x2, x1
            0xd50b_7420, // dc zva, x0
            0x8b01_0000, // add x0, x0, x1
            0xf240_2c1f, // tst x0, #0xfff
            0x54ff_ffa1, // b.ne
            0xd65f_03c0, // ret
        ],
        store: 6,
        kind: Overwrite::Clear,
    },
    Function {
        name: "clear_page, 6.12",
        words: &[
            0xd503_245f,
            0xd53b_00e1,
            0x3720_0121,
            0x1200_0c21,
            0xd280_0082,
            0x9ac1_2041,
            0xd50b_7420,
            0x8b01_0000,
            0xf240_2c1f,
            0x54ff_ffa1,
            0xd65f_03c0,
        ],
        store: 6,
        kind: Overwrite::Clear,
    },
    Function {
        name: "clear_page, 7.2",
        words: &[
            0xd503_245f, // bti c
            0x1400_0006, // b: nop where there is FEAT_MOPS
            0xd282_0001, // mov x1, #4096
            0x19df_2420, // setpn [x0]!, x1!, xzr
            0x19df_6420,
            0x19df_a420,
            0xd65f_03c0,
            0xd53b_00e1,
            0x3720_0121,
            0x1200_0c21,
            0xd280_0082,
            0x9ac1_2041,
            0xd50b_7420,
            0x8b01_0000,
            0xf240_2c1f,
            0x54ff_ffa1,
            0xd65f_03c0,
        ],
        store: 12,
        kind: Overwrite::Clear,
    },
    Function {
        name: "copy_page, 6.1",
        words: &[
            0xd503_245f, // bti c
            0xd503_201f, // nop, or prfm
            0xd503_201f,
            0xd503_201f,
            0xa940_0c22, // ldp x2, x3, [x1]
            0xa941_1424,
            0xa942_1c26,
            0xa943_2428,
            0xa944_2c2a,
            0xa945_342c,
            0xa946_3c2e,
            0xa947_4430,
            0x9104_0000, // add x0, x0, #256
            0x9102_0021, // add x1, x1, #128
            0xf240_2c1f, // tst x0, #0xfff
            0xd503_201f, // nop, or prfm
            0xa830_0c02, // stnp x2, x3, [x0, #-256]
            0xa940_0c22, // ldp x2, x3, [x1]
            0xa831_1404,
            0xa941_1424,
            0xa832_1c06,
            0xa942_1c26,
            0xa833_2408,
            0xa943_2428,
            0xa834_2c0a,
            0xa944_2c2a,
            0xa835_340c,
            0xa945_342c,
            0xa836_3c0e,
            0xa946_3c2e,
            0xa837_4410,
            0xa947_4430,
            0x9102_0000, // add x0, x0, #128
            0x9102_0021, // add x1, x1, #128
            0x54ff_fd81, // b.ne
            0xa830_0c02,
            0xa831_1404,
            0xa832_1c06,
            0xa833_2408,
            0xa834_2c0a,
            0xa835_340c,
            0xa836_3c0e,
            0xa837_4410,
            0xd65f_03c0, // ret
        ],
        store: 16,
        kind: Overwrite::Copy,
    },
    Function {
        name: "copy_page, 6.12",
        words: &[
            0xd503_245f,
            0xa940_0c22,
            0xa941_1424,
            0xa942_1c26,
            0xa943_2428,
            0xa944_2c2a,
            0xa945_342c,
            0xa946_3c2e,
            0xa947_4430,
            0x9104_0000,
            0x9102_0021,
            0xf240_2c1f,
            0xa830_0c02,
            0xa940_0c22,
            0xa831_1404,
            0xa941_1424,
            0xa832_1c06,
            0xa942_1c26,
            0xa833_2408,
            0xa943_2428,
            0xa834_2c0a,
            0xa944_2c2a,
            0xa835_340c,
            0xa945_342c,
            0xa836_3c0e,
            0xa946_3c2e,
            0xa837_4410,
            0xa947_4430,
            0x9102_0000,
            0x9102_0021,
            0x54ff_fda1,
            0xa830_0c02,
            0xa831_1404,
            0xa832_1c06,
            0xa833_2408,
            0xa834_2c0a,
            0xa835_340c,
            0xa836_3c0e,
            0xa837_4410,
            0xd65f_03c0,
        ],
        store: 12,
        kind: Overwrite::Copy,
    },
    Function {
        name: "copy_page, 7.2",
        words: &[
            0xd503_245f,
            0x1400_0006, // b: nop where there is FEAT_MOPS
            0xd282_0002, // mov x2, #4096
            0x1d01_4440, // cpypwn [x0]!, [x1]!, x2!
            0x1d41_4440,
            0x1d81_4440,
            0xd65f_03c0,
            0xa940_0c22,
            0xa941_1424,
            0xa942_1c26,
            0xa943_2428,
            0xa944_2c2a,
            0xa945_342c,
            0xa946_3c2e,
            0xa947_4430,
            0x9104_0000,
            0x9102_0021,
            0xf240_2c1f,
            0xa830_0c02,
            0xa940_0c22,
            0xa831_1404,
            0xa941_1424,
            0xa832_1c06,
            0xa942_1c26,
            0xa833_2408,
            0xa943_2428,
            0xa834_2c0a,
            0xa944_2c2a,
            0xa835_340c,
            0xa945_342c,
            0xa836_3c0e,
            0xa946_3c2e,
            0xa837_4410,
            0xa947_4430,
            0x9102_0000,
            0x9102_0021,
            0x54ff_fda1,
            0xa830_0c02,
            0xa831_1404,
            0xa832_1c06,
            0xa833_2408,
            0xa834_2c0a,
            0xa835_340c,
            0xa836_3c0e,
            0xa837_4410,
            0xd65f_03c0,
        ],
        store: 18,
        kind: Overwrite::Copy,
    },
];
