// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * For tests: what a kernel can do that is no friend of the hypervisor beneath it. /dev/rogue maps any page for
 * programs, be it memory, lent, or nothing; and numbers that are written to it, in hexadecimal, are a call to
 * the hypervisor, whose answers are read then. With storm=, one interrupt for each CPU or 0, such messages come to
 * these CPUs at the moment that they are about to leave, with interrupts masked.
 */
#include <linux/arm-smccc.h>
#include <linux/fs.h>
#include <linux/interrupt.h>
#include <linux/kprobes.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/smp.h>
#include <linux/uaccess.h>

static struct arm_smccc_1_2_regs regs;

static ssize_t rogue_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	char words[128] = "";

	if (size >= sizeof(words) || copy_from_user(words, from, size))
		return -EINVAL;
	memset(&regs, 0, sizeof(regs));
	if (sscanf(words, "%lx %lx %lx %lx %lx", &regs.a0, &regs.a1, &regs.a2, &regs.a3, &regs.a4) < 1)
		return -EINVAL;
	arm_smccc_1_2_hvc(&regs, &regs);
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
