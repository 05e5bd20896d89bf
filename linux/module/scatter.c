// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Single pages that the hypervisor beneath has for a while, where this system has no runs of them left: of as few
 * blocks of 2 MiB as there are, each described to it once.
 */
#include "underpin.h"

#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/signal.h>

/* The most blocks, as the hypervisor takes them, and the fewest pages of one. */
#define BLOCKS_MAX 48
#define LEAST_PAGES (BLOCK_PAGES / 16)

struct block {
	unsigned long first;
	DECLARE_BITMAP(pages, BLOCK_PAGES);
	/* The hypervisor has them, and not only this module. */
	bool is_lent;
};

static struct block blocks[BLOCKS_MAX];
static unsigned int block_count;

/* How many pages of a block are free, by a look without a lock. */
static unsigned int count_free(unsigned long first)
{
	unsigned int n, count = 0;

	for (n = 0; n < BLOCK_PAGES; n++) {
		struct page *page = pfn_to_online_page(first + n);

		count += page && !PageReserved(page) && !page_count(compound_head(page));
	}
	return count;
}

static struct block *block_of(unsigned long pfn)
{
	unsigned long first = ALIGN_DOWN(pfn, BLOCK_PAGES);
	unsigned int b;

	for (b = 0; b < block_count; b++)
		if (blocks[b].first == first)
			return &blocks[b];
	return NULL;
}

/* Chooses blocks of a node of which so many pages are free; how many these are in all. */
static unsigned long choose(int node, unsigned int least, unsigned long count)
{
	unsigned long first = ALIGN(node_start_pfn(node), BLOCK_PAGES);
	unsigned long at = ALIGN_DOWN(node_end_pfn(node), BLOCK_PAGES);
	unsigned long all = 0;

	while (at > first && all < count && block_count < BLOCKS_MAX) {
		unsigned int free;

		at -= BLOCK_PAGES;
		free = block_of(at) ? 0 : count_free(at);
		if (free >= least) {
			blocks[block_count++] = (struct block){ .first = at };
			all += free;
		}
		cond_resched();
	}
	return all;
}

/* Takes free pages, the largest runs first, until there are so many of chosen blocks; others are put aside. */
static unsigned long take_chosen(unsigned long count, struct list_head *aside)
{
	int order = get_order(SZ_2M);
	unsigned long taken = 0;

	while (order >= 0 && taken < count && !fatal_signal_pending(current)) {
		/* Nothing is reclaimed for them. */
		struct page *page = alloc_pages(__GFP_NOWARN | __GFP_NOMEMALLOC, order);
		struct block *block = page ? block_of(page_to_pfn(page)) : NULL;

		cond_resched();
		if (!page) {
			order--;
		} else if (block) {
			split_page(page, order);
			bitmap_set(block->pages, page_to_pfn(page) - block->first, 1 << order);
			taken += 1 << order;
		} else {
			set_page_private(page, order);
			list_add(&page->lru, aside);
		}
	}
	return taken;
}

/* What dump and migration tools must not read, and MemTotal without it; or undone. */
static void mark(struct block *block, bool lent)
{
	unsigned int start, end;

	for_each_set_bitrange(start, end, block->pages, BLOCK_PAGES)
		pages_mark(block->first + start, end - start, lent);
}

/*
 * Takes so many free pages, or a few more, of blocks that have the most: how many there are. What else is free is
 * taken for a moment, as pages cannot be asked for by their place: alloc_contig_range wants no block in which
 * anything stays where it is.
 */
unsigned long blocks_take(unsigned long count)
{
	unsigned int least, b;
	unsigned long chosen = 0, taken;
	struct page *page, *next;
	LIST_HEAD(aside);
	int node;

	/* The hypervisor's pages are as small. */
	if (PAGE_SIZE != SZ_4K)
		return 0;
	/* Some of what is free will not be had. */
	for (least = BLOCK_PAGES - LEAST_PAGES; least >= LEAST_PAGES; least -= LEAST_PAGES)
		for_each_online_node(node)
			if (chosen < 2 * count)
				chosen += choose(node, least, 2 * count - chosen);
	taken = take_chosen(count, &aside);
	list_for_each_entry_safe(page, next, &aside, lru) {
		unsigned int order = page_private(page);

		list_del(&page->lru);
		set_page_private(page, 0);
		__free_pages(page, order);
	}
	for (b = block_count; b-- > 0;) {
		if (bitmap_empty(blocks[b].pages, BLOCK_PAGES)) {
			blocks[b] = blocks[--block_count];
			continue;
		}
		/* The module stays until they are back. */
		__module_get(THIS_MODULE);
		mark(&blocks[b], true);
	}
	return taken;
}

long blocks_lend(void)
{
	struct arm_smccc_1_2_regs regs;
	unsigned int b;

	for (b = 0; b < block_count; b++) {
		const unsigned long *pages = blocks[b].pages;

		regs = (struct arm_smccc_1_2_regs){
			.a0 = UNDERPIN_LEND_PAGES,
			.a1 = PFN_PHYS(blocks[b].first),
			.a2 = pages[0],
			.a3 = pages[1],
			.a4 = pages[2],
			.a5 = pages[3],
			.a6 = pages[4],
			.a7 = pages[5],
			.a8 = pages[6],
			.a9 = pages[7],
		};
		arm_smccc_1_2_hvc(&regs, &regs);
		if (regs.a0)
			return regs.a0;
		blocks[b].is_lent = true;
	}
	return 0;
}

/* All are this system's again, or those before the first that is refused. */
long blocks_reclaim(void)
{
	unsigned int start, end;
	long answer;

	while (block_count) {
		struct block *block = &blocks[block_count - 1];

		answer = 0;
		if (block->is_lent)
			answer = underpin_call(UNDERPIN_REPAY, PFN_PHYS(block->first), 0).a0;
		if (answer)
			return answer;
		mark(block, false);
		for_each_set_bitrange(start, end, block->pages, BLOCK_PAGES)
			free_contig_range(block->first + start, end - start);
		module_put(THIS_MODULE);
		block_count--;
		cond_resched();
	}
	return 0;
}

unsigned int blocks_count(void)
{
	return block_count;
}

unsigned long blocks_bytes(void)
{
	unsigned long pages = 0;
	unsigned int b;

	for (b = 0; b < block_count; b++)
		pages += bitmap_weight(blocks[b].pages, BLOCK_PAGES);
	return pages * PAGE_SIZE;
}
