//! AES-128-GCM as the CPU's instructions have it, by a kept crate.

use crate::machine::{MACHINE, Machine};
use crate::registers::number;
use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{AeadInOut, Aes128Gcm, KeyInit};

impl Machine {
    /// Its CPUs lose AES and PMULL.
    pub fn lose_aes(&mut self) {
        for cpu in &mut self.cpus {
            cpu.registers[const { number("id_aa64isar0_el1") }] &= !0xf0;
        }
    }

    /// Its CPUs have dot products, and no atomics: more than others have, and less.
    pub fn differ(&mut self) {
        for cpu in &mut self.cpus {
            let features = &mut cpu.registers[const { number("id_aa64isar0_el1") }];
            *features = *features & !(0xf << 20) | 1 << 44;
        }
    }
}

/// Whether the CPU has AES and PMULL, or there is no machine.
fn has_aes() -> bool {
    MACHINE.with_borrow_mut(|machine| {
        let machine = machine.as_mut().filter(|it| it.current.is_some());
        let aes = |it: &mut Box<Machine>| it.cpu().registers[const { number("id_aa64isar0_el1") }];
        machine.map(aes).is_none_or(|features| features & 0xf0 != 0)
    })
}

/// A key.
#[derive(Clone)]
pub struct Key(Aes128Gcm);

impl Key {
    /// Makes the key, on a CPU that has the instructions.
    pub fn new(key: &[u8; 16]) -> Self {
        assert!(has_aes(), "an instruction that the CPU lacks");
        Self(Aes128Gcm::new(key.into()))
    }

    /// Encrypts `body` in place and returns the tag; zeroes, which nobody takes, if it is too long.
    pub fn seal(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8]) -> [u8; 16] {
        let tag = self
            .0
            .encrypt_inout_detached(nonce.into(), head, InOutBuf::from(body));
        tag.map_or([0; 16], Into::into)
    }

    /// Decrypts `body` in place; returns whether the tag is right. Else `body` is of no use.
    pub fn open(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8], tag: &[u8; 16]) -> bool {
        let opened =
            self.0
                .decrypt_inout_detached(nonce.into(), head, InOutBuf::from(body), tag.into());
        opened.is_ok()
    }
}
