// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * For tests: what a kernel can do that is no friend of the hypervisor beneath it. /dev/rogue maps any page for
 * programs, be it memory, lent, or nothing; and numbers that are written to it, in hexadecimal, are a call to
 * the hypervisor, whose answers are read then. "0 START PAGES" is none: it answers how many of these pages of memory
 * hold anything but zeroes. With storm=, one interrupt for each CPU or 0, such messages come to these CPUs at the
 * moment that they are about to leave, with interrupts masked. What is written to registers= is printed with each
 * system register of the CPU that has changed since the last time, and what it holds.
 */
#include <linux/arm-smccc.h>
#include <linux/fs.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/kprobes.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/uaccess.h>

static struct arm_smccc_1_2_regs regs;

static unsigned long count_filled(unsigned long start, unsigned long pages)
{
	unsigned long n, filled = 0;

	for (n = 0; n < pages; n++)
		filled += !!memchr_inv(phys_to_virt(start + n * PAGE_SIZE), 0, PAGE_SIZE);
	return filled;
}

static ssize_t rogue_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	char words[128] = "";

	if (size >= sizeof(words) || copy_from_user(words, from, size))
		return -EINVAL;
	memset(&regs, 0, sizeof(regs));
	if (sscanf(words, "%lx %lx %lx %lx %lx", &regs.a0, &regs.a1, &regs.a2, &regs.a3, &regs.a4) < 1)
		return -EINVAL;
	if (regs.a0)
		arm_smccc_1_2_hvc(&regs, &regs);
	else
		regs.a1 = count_filled(regs.a1, regs.a2);
	return size;
}

static ssize_t rogue_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	char words[128];
	int length = scnprintf(words, sizeof(words), "%ld %lx %lx %lx\n", (long)regs.a0, regs.a1,
			       regs.a2, regs.a3);

	return simple_read_from_buffer(to, size, at, words, length);
}

static int rogue_mmap(struct file *file, struct vm_area_struct *area)
{
	return remap_pfn_range(area, area->vm_start, area->vm_pgoff, area->vm_end - area->vm_start,
			       area->vm_page_prot);
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.write = rogue_write,
	.read = rogue_read,
	.mmap = rogue_mmap,
};

static struct miscdevice rogue = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "rogue",
	.fops = &operations,
	.mode = 0600,
};

#define CPUS_MAX 64

static unsigned int storm[CPUS_MAX];
static unsigned int storm_cpus;
module_param_array(storm, uint, &storm_cpus, 0600);

/* The ITS itself sends it, as for a device. */
static int send(struct kprobe *probe, struct pt_regs *regs)
{
	unsigned int cpu = smp_processor_id();

	if (cpu < storm_cpus && storm[cpu])
		irq_set_irqchip_state(storm[cpu], IRQCHIP_STATE_PENDING, true);
	return 0;
}

/* Of underpin.ko: called on each CPU of a detach. */
static struct kprobe leaving = {
	.symbol_name = "detach_here",
	.pre_handler = send,
};

#define ENCODINGS (1 << 15)
#define ENCODING(op0, op1, n, m, op2) (((op0) & 1) << 14 | (op1) << 11 | (n) << 7 | (m) << 3 | (op2))

/* Who reads them takes an interrupt: ICC_IAR0_EL1, ICC_IAR1_EL1, ICC_NMIAR1_EL1. */
static bool acknowledges(unsigned int encoding)
{
	return encoding == ENCODING(3, 0, 12, 8, 0) || encoding == ENCODING(3, 0, 12, 12, 0) ||
	       encoding == ENCODING(3, 0, 12, 9, 5);
}

/* Each MRS that there is, to x0, and a return; and vectors by which what takes an exception there is stepped over. */
asm("	.pushsection .text, \"ax\"\n"
    "	.balign 2048\n"
    "rogue_vectors:\n"
    "	.skip 0x200, 0\n"
    "	mrs	x1, elr_el1\n"
    "	add	x1, x1, #4\n"
    "	msr	elr_el1, x1\n"
    "	mov	x1, #1\n"
    "	eret\n"
    "	.balign 2048\n"
    "rogue_reads:\n"
    "	.set	encoding, 0\n"
    "	.rept	1 << 15\n"
    "	.inst	0xd5300000 | (encoding << 5)\n"
    "	ret	x2\n"
    "	.set	encoding, encoding + 1\n"
    "	.endr\n"
    "	.popsection\n");

extern char rogue_vectors[], rogue_reads[];

/* What a register holds; false where there is none. */
static bool read_register(unsigned int encoding, u64 *value)
{
	register u64 x0 asm("x0") = 0;
	register u64 x1 asm("x1") = 0;
	register char *x2 asm("x2") = rogue_reads + encoding * 8;
	u64 masks, vectors;

	asm volatile("mrs %[masks], daif\n"
		     "msr daifset, #15\n"
		     "mrs %[vectors], vbar_el1\n"
		     "msr vbar_el1, %[own]\n"
		     "isb\n"
		     "mov x3, x2\n"
		     "adr x2, 1f\n"
		     "ret x3\n"
		     "1: msr vbar_el1, %[vectors]\n"
		     "isb\n"
		     "msr daif, %[masks]\n"
		     : "+r"(x0), "+r"(x1), "+r"(x2), [masks] "=&r"(masks), [vectors] "=&r"(vectors)
		     : [own] "r"(rogue_vectors)
		     : "x3", "memory");
	*value = x0;
	return !x1;
}

static u64 before[ENCODINGS];
static bool is_known[ENCODINGS];

static int look(const char *when, const struct kernel_param *param)
{
	unsigned int encoding, count = 0;

	for (encoding = 0; encoding < ENCODINGS; encoding++) {
		u64 value;

		if (acknowledges(encoding) || !read_register(encoding, &value))
			continue;
		count++;
		if (is_known[encoding] && before[encoding] != value)
			pr_info("rogue: %.*s s%u_%u_c%u_c%u_%u = 0x%llx\n", (int)strcspn(when, "\n"),
				when, 2 | encoding >> 14, encoding >> 11 & 7, encoding >> 7 & 15,
				encoding >> 3 & 15, encoding & 7, value);
		is_known[encoding] = true;
		before[encoding] = value;
	}
	pr_info("rogue: %.*s registers=%u\n", (int)strcspn(when, "\n"), when, count);
	return 0;
}

static const struct kernel_param_ops registers = {
	.set = look,
};
module_param_cb(registers, &registers, NULL, 0200);

static int __init rogue_init(void)
{
	int error = misc_register(&rogue);

	if (!error && storm_cpus) {
		error = register_kprobe(&leaving);
		if (error)
			misc_deregister(&rogue);
	}
	return error;
}

static void __exit rogue_exit(void)
{
	if (storm_cpus)
		unregister_kprobe(&leaving);
	misc_deregister(&rogue);
}

module_init(rogue_init);
module_exit(rogue_exit);
MODULE_DESCRIPTION("Calls and accesses that no friend of the hypervisor makes, for tests");
MODULE_LICENSE("GPL");
