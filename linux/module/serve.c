// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Disks that this system serves to VMs: /dev/underpin-disks is the area that the hypervisor and the
 * server share (abi/src/served.rs), by position. Whoever serves reads its first page whole, which
 * waits until something has been asked for since that was done last, and writes answers. The area
 * holds as long as memory is lent, whether somebody serves or not: what was not answered is there
 * for whoever comes next.
 */
#include "underpin.h"

#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/gfp.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#define SLOTS 16
/* Of a record, in words of 64 bits. */
#define RECORD_WORDS 8
#define TICKET 0
#define ANSWER 4
#define RECORDS_BYTES (SLOTS * RECORD_WORDS * sizeof(u64))
#define HEAD_BYTES 4096
#define AREA_BYTES (HEAD_BYTES + SLOTS * SZ_64K)

static void *area;
static bool is_given, has_server, was_asked, is_over;
/* This system ends: what fails now is no fault of the disk, and is done again by the next one. */
static bool is_ending;
static DEFINE_MUTEX(lock);
static DECLARE_WAIT_QUEUE_HEAD(asked);

/* Whether any record has a ticket without its answer: others have the interrupt, too. */
static bool is_asked(void)
{
	const u64 *record = area;
	int n;

	for (n = 0; n < SLOTS; n++, record += RECORD_WORDS)
		if (READ_ONCE(record[TICKET]) != READ_ONCE(record[ANSWER]) >> 1)
			return true;
	return false;
}

static irqreturn_t on_bell(int irq, void *unused)
{
	if (is_asked()) {
		WRITE_ONCE(was_asked, true);
		wake_up(&asked);
	}
	return IRQ_HANDLED;
}

static unsigned long give_area(u32 *intid)
{
	*intid = bell_take(on_bell, &area);
	if (!*intid) {
		pr_err("no disks are served\n");
		return 0;
	}
	is_given = true;
	return virt_to_phys(area);
}

/* The area's address and the bell, for the hypervisor; 0 where nothing is offered. */
unsigned long disks_begin(u32 *intid)
{
	*intid = 0;
	return area && *((char *)area + RECORDS_BYTES) ? give_area(intid) : 0;
}

/* The same for disks that the system before this one has served: the hypervisor fills the area. */
unsigned long disks_adopt(u32 *intid)
{
	area = alloc_pages_exact(AREA_BYTES, GFP_KERNEL | __GFP_ZERO);
	return area ? give_area(intid) : 0;
}

static void free_area(void)
{
	if (area)
		free_pages_exact(area, AREA_BYTES);
	area = NULL;
}

/* The hypervisor has nothing of the area any more; who serves is told by an end of file. */
void disks_end(void)
{
	mutex_lock(&lock);
	if (is_given)
		bell_release(&area);
	is_given = false;
	if (!has_server)
		free_area();
	WRITE_ONCE(is_over, true);
	mutex_unlock(&lock);
	wake_up(&asked);
}

void disks_stop(void)
{
	WRITE_ONCE(is_ending, true);
}

static int disks_open(struct inode *inode, struct file *file)
{
	int error = 0;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	mutex_lock(&lock);
	if (has_server)
		error = -EBUSY;
	else if (!area)
		area = alloc_pages_exact(AREA_BYTES, GFP_KERNEL | __GFP_ZERO);
	if (!error && !area)
		error = -ENOMEM;
	if (!error) {
		has_server = true;
		/* Whoever came before may have left something. */
		WRITE_ONCE(was_asked, true);
		WRITE_ONCE(is_over, false);
	}
	mutex_unlock(&lock);
	return error;
}

static int disks_release(struct inode *inode, struct file *file)
{
	mutex_lock(&lock);
	has_server = false;
	if (!is_given)
		free_area();
	mutex_unlock(&lock);
	return 0;
}

/* The whole first page waits; it is empty when all memory is back. */
static ssize_t disks_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	if (!*at && size >= HEAD_BYTES) {
		if (wait_event_interruptible(asked, READ_ONCE(is_over) ||
						     xchg(&was_asked, false)))
			return -ERESTARTSYS;
		if (READ_ONCE(is_over))
			return 0;
	}
	/* What was asked is read after it was seen. */
	smp_rmb();
	return simple_read_from_buffer(to, size, at, area, AREA_BYTES);
}

/* Answers, which are told to the hypervisor; before memory is lent, offers. */
static ssize_t disks_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	bool is_answer = *at < RECORDS_BYTES;
	ssize_t written;

	if (READ_ONCE(is_ending))
		return -ESHUTDOWN;
	/* The data are there before the answer is. */
	smp_wmb();
	written = simple_write_to_buffer(area, AREA_BYTES, at, from, size);
	smp_mb();
	if (written > 0 && is_answer)
		while (underpin_call(UNDERPIN_SERVED, 0, 0).a0 == UNDERPIN_MORE)
			cond_resched();
	return written;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = disks_open,
	.release = disks_release,
	.read = disks_read,
	.write = disks_write,
	.llseek = default_llseek,
};

static struct miscdevice disks = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "underpin-disks",
	.fops = &operations,
	.mode = 0600,
};

int disks_init(void)
{
	return misc_register(&disks);
}

void disks_exit(void)
{
	misc_deregister(&disks);
}
