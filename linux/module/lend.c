// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Lends memory of this system to the hypervisor beneath it, which makes VMs of it, and asks for it
 * back. /dev/underpin-control carries the records of Underpin's control port (abi/src/control.rs).
 */
#include "underpin.h"

#include <linux/capability.h>
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/gfp.h>
#include <linux/miscdevice.h>
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/stop_machine.h>
#include <linux/uaccess.h>

/* The most runs, as the hypervisor takes them, and the fewest pages of one but the last. */
#define RUNS_MAX 16
/* And those of the system before this one, with blocks of which it had lent pages. */
#define ADOPTED_MAX 64
#define LEAST_PAGES (SZ_16M / PAGE_SIZE)
/* How often somebody who listens asks again. */
#define LISTEN_MS 10

/* What is lent, or about to be: the bundle begins the first run. */
static struct run runs[ADOPTED_MAX];
static unsigned int run_count;
/* Whether VMs have their part of the CPUs. */
static bool sharing;
static atomic_long_t answer_of_all;
/* Whether the control channel is open. */
static atomic_t has_listener;

static long ask(u32 function, unsigned long one, unsigned long two)
{
	return underpin_call(function, one, two).a0;
}

static void release(void)
{
	blocks_reclaim();
	while (run_count)
		run_release(&runs[--run_count]);
}

/*
 * Takes so many pages, in as few runs as there are: one, or the largest halves and quarters that can be had. What is
 * left then are single pages.
 */
static int find_all(unsigned long count)
{
	unsigned long size = count, all = count, single = 0;
	int error = 0;

	while (count && run_count < RUNS_MAX && !error) {
		/* The rest of what is wanted may be less than a run should have. */
		size = min(size, count);
		error = run_take(&runs[run_count], size * PAGE_SIZE);
		if (!error) {
			run_count++;
			count -= size;
		} else if (error == -ENOMEM && size > LEAST_PAGES) {
			size = ALIGN(size / 2, BLOCK_PAGES);
			error = 0;
		}
	}
	if (!count || (error && error != -ENOMEM) || !run_count)
		goto out;
	single = blocks_take(count);
	error = single < count ? -ENOMEM : 0;
out:
	if (error) {
		pr_info("%lu KiB were to be lent: %lu are to be had in runs, %lu in single pages\n",
			all << (PAGE_SHIFT - 10), (all - count) << (PAGE_SHIFT - 10),
			single << (PAGE_SHIFT - 10));
		release();
	}
	return error;
}

static int share_here(void *on)
{
	long answer = ask(UNDERPIN_SHARE, on ? 1 : 0, 0);

	if (answer < 0)
		atomic_long_cmpxchg(&answer_of_all, 0, answer);
	return 0;
}

/* All CPUs share with VMs, or none does. */
static long share(bool on)
{
	int error;

	net_share(false);
	atomic_long_set(&answer_of_all, 0);
	error = stop_machine(share_here, on ? (void *)1 : NULL, cpu_online_mask);
	if (!error)
		error = atomic_long_read(&answer_of_all);
	if (!error)
		sharing = on;
	net_share(sharing);
	return error;
}

bool is_parked(void)
{
	return run_count && !sharing;
}

/* No VM has any CPU. Where one refuses, as a VM runs, all go on. */
long park(void)
{
	long answer = sharing ? share(false) : 0;

	if (answer)
		share(true);
	return answer;
}

/* VMs that are parked have their CPUs again. */
long unpark(void)
{
	return is_parked() ? share(true) : 0;
}

/* Asks for the memory back. What is refused stays lent: it is nothing to this system. */
static long reclaim(unsigned int lent)
{
	unsigned int r;
	long answer;

	for (r = 0; r < lent; r++) {
		/* It may have come back when another one did not. */
		answer = runs[r].pages ? run_reclaim(&runs[r], UNDERPIN_REPAY) : 0;
		if (answer)
			return answer;
	}
	answer = blocks_reclaim();
	if (answer)
		return answer;
	for (; r < run_count; r++)
		run_release(&runs[r]);
	run_count = 0;
	disks_end();
	net_end();
	cpu_hotplug_enable();
	return 0;
}

static long repay(void);

/* VMs are made of the loan; they may use disks that this system serves. */
static long open_loan(long bundle)
{
	struct arm_smccc_1_2_regs regs = { .a0 = UNDERPIN_OPEN };
	u32 bell;

	regs.a1 = PFN_PHYS(runs[0].first);
	regs.a2 = bundle;
	regs.a3 = disks_begin(&bell);
	regs.a4 = bell;
	arm_smccc_1_2_hvc(&regs, &regs);
	return regs.a0;
}

/* What can be lent now: the rest is what this system needs to work, a part of all and 64 MiB at least. */
unsigned long spare_bytes(void)
{
	long kept = max(totalram_pages() / 32, SZ_64M / PAGE_SIZE);
	long spare = si_mem_available() - kept;

	return spare > 0 ? spare * PAGE_SIZE : 0;
}

/* Lends so many MiB, which begin with the bundle in that file, and shares all CPUs with its VMs. */
static long lend(unsigned int mib, const char *path)
{
	long bundle, answer;
	unsigned int r;
	int error;

	if (run_count)
		return -EBUSY;
	if (!mib || mib % 2)
		return -EINVAL;
	if (mib > spare_bytes() >> 20)
		return -ENOMEM;
	error = find_all((unsigned long)mib << (20 - PAGE_SHIFT));
	if (error)
		return error;
	bundle = *path ? run_load(&runs[0], path) : 0;
	if (bundle < 0) {
		release();
		return bundle;
	}
	/* CPUs stay on or off as they are, as long as VMs use them. */
	cpu_hotplug_disable();
	for (r = 0; r < run_count; r++) {
		answer = ask(UNDERPIN_LEND, PFN_PHYS(runs[r].first), runs[r].pages * PAGE_SIZE);
		if (answer < 0) {
			reclaim(r);
			return answer;
		}
	}
	answer = blocks_lend();
	if (!answer)
		answer = open_loan(bundle);
	if (!answer) {
		net_begin();
		answer = share(true);
	}
	if (answer)
		repay();
	return answer;
}

/*
 * VMs outlived the system before this one: what they have is lent by this one from now on, and their disks
 * can be served again.
 */
void adopt_loan(unsigned long start, unsigned long bytes)
{
	unsigned long area;
	u32 bell;

	if (run_count == ADOPTED_MAX)
		return;
	run_adopt(&runs[run_count], start, bytes);
	if (run_count++)
		return;
	cpu_hotplug_disable();
	sharing = true;
	area = disks_adopt(&bell);
	if (area && !ask(UNDERPIN_SERVE, area, bell))
		/* What was answered, and not told before the end. */
		while (ask(UNDERPIN_SERVED, 0, 0) == UNDERPIN_MORE)
			cond_resched();
	net_begin();
	net_share(true);
	pr_info("VMs of the system before this one are here\n");
}

/* Asks for all that is lent; refused as long as a VM runs. */
static long repay(void)
{
	long answer;

	if (!run_count)
		return 0;
	answer = share(false);
	if (!answer || answer == UNDERPIN_NOT_OPEN)
		answer = ask(UNDERPIN_CLOSE, 0, 0);
	if (answer && answer != UNDERPIN_NOT_OPEN) {
		share(true);
		return answer;
	}
	return reclaim(run_count);
}

unsigned long lent_bytes(void)
{
	unsigned long pages = 0;
	unsigned int r;

	for (r = 0; r < run_count; r++)
		pages += runs[r].pages;
	return pages * PAGE_SIZE + blocks_bytes();
}

unsigned int loan_count(void)
{
	return run_count + blocks_count();
}

/* "lend MIB [BUNDLE]": the file's name is all that follows. */
int serve_lend(struct answer *answer, char *words)
{
	unsigned int mib;
	int length = 0;

	if (sscanf(words, "%u %n", &mib, &length) < 1)
		return -EINVAL;
	return tell(answer, lend(mib, words + length));
}

int serve_repay(struct answer *answer, char *words)
{
	return tell(answer, repay());
}

/*
 * Two pages through which bytes go, as one thread reads while another writes: what is heard, and what is told.
 * Whoever has the file open has all that is said.
 */
static int control_open(struct inode *inode, struct file *file)
{
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (atomic_cmpxchg(&has_listener, 0, 1))
		return -EBUSY;
	file->private_data = (void *)__get_free_pages(GFP_KERNEL | __GFP_ZERO, 1);
	if (file->private_data)
		return 0;
	atomic_set(&has_listener, 0);
	return -ENOMEM;
}

static int control_release(struct inode *inode, struct file *file)
{
	free_pages((unsigned long)file->private_data, 1);
	atomic_set(&has_listener, 0);
	return 0;
}

static ssize_t control_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	void *page = file->private_data;
	long heard;

	size = min_t(size_t, size, PAGE_SIZE);
	/* Parked VMs say nothing, and nothing is to enter the hypervisor. */
	while (is_parked() || !(heard = ask(UNDERPIN_HEAR, virt_to_phys(page), size))) {
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (msleep_interruptible(LISTEN_MS))
			return -ERESTARTSYS;
	}
	if (heard < 0)
		return 0;
	return copy_to_user(to, page, heard) ? -EFAULT : heard;
}

static ssize_t control_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	void *page = file->private_data + PAGE_SIZE;
	long told;

	size = min_t(size_t, size, PAGE_SIZE);
	if (copy_from_user(page, from, size))
		return -EFAULT;
	while (!(told = ask(UNDERPIN_TELL, virt_to_phys(page), size)) && size) {
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (msleep_interruptible(LISTEN_MS))
			return -ERESTARTSYS;
	}
	return told < 0 ? -ENODEV : told;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = control_open,
	.release = control_release,
	.read = control_read,
	.write = control_write,
};

static struct miscdevice control = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "underpin-control",
	.fops = &operations,
	.mode = 0600,
};

int control_init(void)
{
	return misc_register(&control);
}

void control_exit(void)
{
	misc_deregister(&control);
}
