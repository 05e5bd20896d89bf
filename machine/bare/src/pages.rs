//! Whole pages of scratch memory, cleared and copied by the very loops that Linux has for it
//! (arm64's `clear_page` and `copy_page`), which a hypervisor may know by their words.

use core::arch::{asm, global_asm};

use crate::memory::{PAGE_SIZE, Scratch};

global_asm!(
    r#"
    .text
    // None of them is in two pages.
    .balign 512
    // x0 = page
bare_clear_page:
    mrs     x1, dczid_el0
    and     w1, w1, #0xf
    mov     x2, #4
    lsl     x1, x2, x1
1:  dc      zva, x0
    add     x0, x0, x1
    tst     x0, #0xfff
    b.ne    1b
    ret

    // x0 = first byte, x1 = bytes: the end of a memset, which looks much the same.
bare_clear_blocks:
    add     x3, x0, x1
    mrs     x1, dczid_el0
    and     w1, w1, #0xf
    mov     x2, #4
    lsl     x1, x2, x1
1:  dc      zva, x0
    add     x0, x0, x1
    cmp     x0, x3
    b.lo    1b
    ret

    // x0 = page to, x1 = page from
bare_copy_page:
    ldp     x2, x3, [x1]
    ldp     x4, x5, [x1, #16]
    ldp     x6, x7, [x1, #32]
    ldp     x8, x9, [x1, #48]
    ldp     x10, x11, [x1, #64]
    ldp     x12, x13, [x1, #80]
    ldp     x14, x15, [x1, #96]
    ldp     x16, x17, [x1, #112]
    add     x0, x0, #256
    add     x1, x1, #128
1:  tst     x0, #0xfff
    stnp    x2, x3, [x0, #-256]
    ldp     x2, x3, [x1]
    stnp    x4, x5, [x0, #-240]
    ldp     x4, x5, [x1, #16]
    stnp    x6, x7, [x0, #-224]
    ldp     x6, x7, [x1, #32]
    stnp    x8, x9, [x0, #-208]
    ldp     x8, x9, [x1, #48]
    stnp    x10, x11, [x0, #-192]
    ldp     x10, x11, [x1, #64]
    stnp    x12, x13, [x0, #-176]
    ldp     x12, x13, [x1, #80]
    stnp    x14, x15, [x0, #-160]
    ldp     x14, x15, [x1, #96]
    stnp    x16, x17, [x0, #-144]
    ldp     x16, x17, [x1, #112]
    add     x0, x0, #128
    add     x1, x1, #128
    b.ne    1b
    stnp    x2, x3, [x0, #-256]
    stnp    x4, x5, [x0, #-240]
    stnp    x6, x7, [x0, #-224]
    stnp    x8, x9, [x0, #-208]
    stnp    x10, x11, [x0, #-192]
    stnp    x12, x13, [x0, #-176]
    stnp    x14, x15, [x0, #-160]
    stnp    x16, x17, [x0, #-144]
    ret
"#
);

unsafe extern "C" {
    fn bare_clear_page(page: u64);
    fn bare_clear_blocks(start: u64, bytes: u64);
    fn bare_copy_page(to: u64, from: u64);
}

/// Bytes that `dc zva` clears, by this CPU's DCZID_EL0.
pub fn block_size() -> u64 {
    let dczid: u64;
    // SAFETY: reads an identification register.
    unsafe { asm!("mrs {}, dczid_el0", out(reg) dczid, options(nomem, nostack)) };
    4 << (dczid & 0xf)
}

impl Scratch {
    fn page(&self, index: u64) -> u64 {
        self.part(index * PAGE_SIZE, PAGE_SIZE).base()
    }

    /// Clears page `index` as Linux does.
    pub fn clear_page(&self, index: u64) {
        // SAFETY: a page of scratch memory.
        unsafe { bare_clear_page(self.page(index)) };
    }

    /// Clears the first `bytes` of page `index` by `dc zva`: a multiple of [`block_size`], and not
    /// the whole page.
    pub fn clear_blocks(&self, index: u64, bytes: u64) {
        assert!(
            bytes.is_multiple_of(block_size()) && bytes < PAGE_SIZE && bytes != 0,
            "not blocks of a page"
        );
        // SAFETY: inside a page of scratch memory.
        unsafe { bare_clear_blocks(self.page(index), bytes) };
    }

    /// Copies page `from` to page `to`, which is another, as Linux does.
    pub fn copy_page(&self, to: u64, from: u64) {
        assert!(to != from, "a page copied to itself");
        // SAFETY: pages of scratch memory.
        unsafe { bare_copy_page(self.page(to), self.page(from)) };
    }
}
