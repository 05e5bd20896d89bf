// SPDX-License-Identifier: GPL-2.0-or-later
/* Runs of this system's memory that the hypervisor beneath it has for a while. */
#include "underpin.h"

#include <linux/fs.h>
#include <linux/gfp.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/version.h>

/* Whether the pages could be moved elsewhere: there, of one zone, and none reserved. */
static bool may_be_free(unsigned long pfn, unsigned long count)
{
	struct page *page = pfn_to_online_page(pfn);
	struct zone *zone = page ? page_zone(page) : NULL;
	unsigned long end = pfn + count;

	for (; pfn < end; pfn++) {
		page = pfn_to_online_page(pfn);
		if (!page || page_zone(page) != zone || PageReserved(page) || PageHuge(page))
			return false;
	}
	return true;
}

int pages_take(unsigned long pfn, unsigned long count)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 16, 0)
	return alloc_contig_range(pfn, pfn + count, ACR_FLAGS_NONE, GFP_KERNEL | __GFP_NOWARN);
#else
	return alloc_contig_range(pfn, pfn + count, MIGRATE_MOVABLE, GFP_KERNEL | __GFP_NOWARN);
#endif
}

/* Takes pages that follow each other, the highest there are. */
static int find(unsigned long count, unsigned long *first)
{
	int node;

	for_each_online_node(node) {
		unsigned long start = ALIGN(node_start_pfn(node), BLOCK_PAGES);
		unsigned long end = ALIGN_DOWN(node_end_pfn(node), BLOCK_PAGES);
		unsigned long at;

		for (at = end; at >= start + count; at -= BLOCK_PAGES) {
			if (fatal_signal_pending(current))
				return -EINTR;
			if (may_be_free(at - count, count) && !pages_take(at - count, count)) {
				*first = at - count;
				return 0;
			}
			cond_resched();
		}
	}
	return -ENOMEM;
}

/* What dump and migration tools must not read, and MemTotal without it; or undone. */
void pages_mark(unsigned long first, unsigned long count, bool lent)
{
	unsigned long n;

	for (n = 0; n < count; n++) {
		struct page *page = pfn_to_page(first + n);

		if (lent)
			__SetPageOffline(page);
		else
			__ClearPageOffline(page);
	}
	adjust_managed_page_count(pfn_to_page(first), lent ? -(long)count : (long)count);
}

int run_take(struct run *run, unsigned long bytes)
{
	unsigned long count = ALIGN(DIV_ROUND_UP(bytes, PAGE_SIZE), BLOCK_PAGES);
	int error = count > totalram_pages() ? -EINVAL : find(count, &run->first);

	if (error)
		return error;
	run->pages = count;
	run->is_adopted = false;
	/* The module stays until it is back. */
	__module_get(THIS_MODULE);
	pages_mark(run->first, run->pages, true);
	return 0;
}

/*
 * What was lent by the system that this one was started in the place of: the device tree reserves it, so
 * that nobody here has used it yet.
 */
void run_adopt(struct run *run, unsigned long start, unsigned long bytes)
{
	run->first = PHYS_PFN(start);
	run->pages = bytes >> PAGE_SHIFT;
	run->is_adopted = true;
	__module_get(THIS_MODULE);
}

/* The memory is this system's again. */
void run_release(struct run *run)
{
	unsigned long n;

	if (run->is_adopted) {
		for (n = 0; n < run->pages; n++)
			free_reserved_page(pfn_to_page(run->first + n));
	} else {
		pages_mark(run->first, run->pages, false);
		free_contig_range(run->first, run->pages);
	}
	run->pages = 0;
	module_put(THIS_MODULE);
}

long run_load(struct run *run, const char *path)
{
	struct file *file = filp_open(path, O_RDONLY, 0);
	char *to = page_address(pfn_to_page(run->first));
	loff_t at = 0;
	ssize_t got;

	if (IS_ERR(file))
		return PTR_ERR(file);
	do {
		size_t room = run->pages * PAGE_SIZE - at;

		got = room ? kernel_read(file, to + at, room, &at) : 0;
	} while (got > 0);
	if (!got && at < i_size_read(file_inode(file)))
		got = -EFBIG;
	filp_close(file, NULL);
	return got < 0 ? got : at;
}

long run_reclaim(struct run *run, u32 function)
{
	long answer;

	while ((answer = underpin_call(function, PFN_PHYS(run->first), 0).a0) == UNDERPIN_MORE)
		cond_resched();
	if (!answer)
		run_release(run);
	return answer;
}
