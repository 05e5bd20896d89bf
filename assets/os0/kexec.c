// SPDX-License-Identifier: GPL-2.0-or-later
// For tests: kexec of a program of a few instructions, which says on the console that it runs and powers off.
//
// Debian's arm64 kernels have kexec_load alone, which leaves the making of a device tree to who calls it.
#include <linux/kexec.h>
#include <linux/reboot.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096
// Memory on all of QEMU's machines, and the console of its `virt`.
#define AT 0x60000000

asm(".pushsection .rodata\n"
    ".balign 4096\n"
    "payload:\n"
    "	adr x1, said\n"
    "	mov x2, #0x09000000\n"
    "1:	ldrb w3, [x1], #1\n"
    "	cbz w3, 2f\n"
    "	str w3, [x2]\n"
    "	b 1b\n"
    "2:	mov x0, #0x84000000\n" // PSCI SYSTEM_OFF
    "	orr x0, x0, #8\n"
    "	smc #0\n"
    "	b .\n"
    "said:	.asciz \"os0: kexeced\\r\\n\"\n"
    ".balign 4096\n"
    ".popsection\n");

extern char payload[];

int main(void)
{
	struct kexec_segment segment = {
		.buf = payload,
		.bufsz = PAGE,
		.mem = (void *)AT,
		.memsz = PAGE,
	};

	if (syscall(SYS_kexec_load, AT, 1L, &segment, (unsigned long)KEXEC_ARCH_AARCH64)) {
		perror("kexec_load");
		return 1;
	}
	sync();
	syscall(SYS_reboot, LINUX_REBOOT_MAGIC1, LINUX_REBOOT_MAGIC2, LINUX_REBOOT_CMD_KEXEC, 0);
	perror("reboot");
	return 1;
}
