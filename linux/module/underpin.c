// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * /dev/underpin: asks the hypervisor beneath this system to attach and to detach.
 *
 * Reading gives one line of JSON. Writing "attach" or "detach" makes the switch on all CPUs; it
 * fails with EREMOTEIO where the hypervisor refuses, and the line then says why. The hypervisor
 * checks everything again; nobody but root may open the file.
 *
 * The calls are those of abi/src/os0.rs in Underpin's source.
 */
#define pr_fmt(fmt) "underpin: " fmt

#include <linux/arm-smccc.h>
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/stop_machine.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>
#include <asm/ptrace.h>
#include <asm/sysreg.h>

#define UID 0x8600ff01
#define STATUS 0xc6000040
#define ATTACH 0xc6000041
#define DETACH 0xc6000042
#define BUSY 1
/* Refusal number n is -0x100 - n. */
#define FIRST_REFUSAL (-0x100)

/* b3ad1d54-6cf5-4a5c-9a3c-2f1f4f0b7d26, as SMCCC returns it. */
static const u32 uid[4] = { 0x541dadb3, 0x5c4af56c, 0x1f2f3c9a, 0x267d0b4f };

/* How often a CPU that holds a message-signalled interrupt is asked again. */
#define TRIES 10000

static DEFINE_MUTEX(switching);
static const char *last = "none";
static cpumask_t busy;
/* The answer that is told: the first refusal of any CPU. */
static atomic_long_t refusal;
static unsigned long switches, retries;
/* The most counts of the system counter that a CPU's call of the last switch took. */
static atomic_long_t counts;

static const char *const reasons[] = {
	"none", "interrupts-open", "handling-interrupt", "too-few-list-registers", "late",
	"wrong-number", "already-attached", "not-attached", "elsewhere", "memory-out-of-reach",
};

static const char *reason(long answer)
{
	long number = FIRST_REFUSAL - answer;

	if (answer >= 0)
		return "none";
	if (number >= 1 && number < ARRAY_SIZE(reasons))
		return reasons[number];
	return "unknown";
}

static long call(u32 function, unsigned long argument)
{
	struct arm_smccc_res res;
	long taken, most = atomic_long_read(&counts);
	u64 before;

	isb();
	before = read_sysreg(cntvct_el0);
	arm_smccc_hvc(function, argument, 0, 0, 0, 0, 0, 0, &res);
	isb();
	taken = read_sysreg(cntvct_el0) - before;
	while (taken > most && !atomic_long_try_cmpxchg(&counts, &most, taken))
		;
	return (long)res.a0;
}

static void note(long answer)
{
	if (answer < 0)
		atomic_long_cmpxchg(&refusal, 0, answer);
}

/* On every CPU at the same time, with interrupts masked. */
static int attach_here(void *unused)
{
	note(call(ATTACH, num_online_cpus()));
	return 0;
}

static int detach_here(void *unused)
{
	long answer = call(DETACH, 0);

	if (answer == BUSY)
		cpumask_set_cpu(smp_processor_id(), &busy);
	else
		note(answer);
	return 0;
}

/* On a CPU that was busy: unmasked interrupts let it take what it holds. */
static long leave_here(void *unused)
{
	unsigned long flags;
	int tries;
	long answer = BUSY;

	for (tries = 0; tries < TRIES && answer == BUSY; tries++) {
		local_irq_save(flags);
		answer = call(DETACH, 1);
		local_irq_restore(flags);
		retries++;
	}
	if (answer == BUSY) {
		/* Lets interrupts through again as soon as there is room for them. */
		local_irq_save(flags);
		answer = call(DETACH, 0);
		local_irq_restore(flags);
	}
	return answer;
}

static int attach(void)
{
	atomic_long_set(&refusal, 0);
	atomic_long_set(&counts, 0);
	return stop_machine(attach_here, NULL, cpu_online_mask);
}

static int detach(void)
{
	int cpu, error;

	atomic_long_set(&refusal, 0);
	atomic_long_set(&counts, 0);
	cpumask_clear(&busy);
	/* A CPU that comes up meanwhile would come up as some of the others are. */
	cpu_hotplug_disable();
	error = stop_machine(detach_here, NULL, cpu_online_mask);
	for_each_cpu(cpu, &busy) {
		long answer = work_on_cpu(cpu, leave_here, NULL);

		if (answer == BUSY) {
			pr_err("cpu %d does not take its interrupts and stays attached\n", cpu);
			error = -EBUSY;
		} else {
			note(answer);
		}
	}
	cpu_hotplug_enable();
	return error;
}

static ssize_t underpin_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	char word[16] = "";
	int error;

	if (size >= sizeof(word))
		return -EINVAL;
	if (copy_from_user(word, from, size))
		return -EFAULT;
	strim(word);
	mutex_lock(&switching);
	if (!strcmp(word, "attach"))
		error = attach();
	else if (!strcmp(word, "detach"))
		error = detach();
	else
		error = -EINVAL;
	if (error != -EINVAL) {
		long answer = atomic_long_read(&refusal);

		last = reason(answer);
		if (!error && answer)
			error = -EREMOTEIO;
		if (!error)
			switches++;
	}
	mutex_unlock(&switching);
	return error ? error : size;
}

static ssize_t underpin_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	struct arm_smccc_res res;
	char line[320];
	int length;

	/* The line is read at once: asking for more asks the hypervisor nothing. */
	if (*at)
		return 0;
	mutex_lock(&switching);
	/* X2 counts on the CPU that asks. */
	preempt_disable();
	arm_smccc_hvc(STATUS, 0, 0, 0, 0, 0, 0, 0, &res);
	length = scnprintf(line, sizeof(line),
			   "{\"state\":\"%s\",\"cpu\":%d,\"entries\":%lu,\"kept\":%lu,\"switches\":%lu,\"retries\":%lu,\"counts\":%ld,\"refusal\":\"%s\",\"dma\":\"open\"}\n",
			   res.a1 ? "attached" : "detached", smp_processor_id(), res.a2, res.a3,
			   switches, retries, atomic_long_read(&counts), last);
	preempt_enable();
	mutex_unlock(&switching);
	return simple_read_from_buffer(to, size, at, line, length);
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.read = underpin_read,
	.write = underpin_write,
	.llseek = default_llseek,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "underpin",
	.fops = &operations,
	.mode = 0600,
};

/* By SMC, which firmware refuses where no hypervisor answers: an HVC would be undefined there. */
static bool is_beneath(void)
{
	struct arm_smccc_res res;

	if (read_sysreg(CurrentEL) != CurrentEL_EL1) {
		pr_err("this kernel started at EL2: nothing is beneath it\n");
		return false;
	}
	arm_smccc_smc(UID, 0, 0, 0, 0, 0, 0, 0, &res);
	if ((u32)res.a0 == uid[0] && (u32)res.a1 == uid[1] && (u32)res.a2 == uid[2] &&
	    (u32)res.a3 == uid[3])
		return true;
	pr_err("Underpin is not beneath this system\n");
	return false;
}

static int __init underpin_init(void)
{
	if (!is_beneath())
		return -ENODEV;
	return misc_register(&device);
}

static void __exit underpin_exit(void)
{
	misc_deregister(&device);
}

module_init(underpin_init);
module_exit(underpin_exit);
MODULE_DESCRIPTION("Underpin beneath a running system: attach and detach");
MODULE_LICENSE("GPL");
