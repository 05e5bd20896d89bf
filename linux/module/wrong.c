// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * For tests, and no part of the driver: calls of the hypervisor's that this system's own module never makes, with
 * how each is answered. It is not loaded in the end.
 */
#include "underpin.h"

#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/module.h>

#define AREA_BYTES (1 << 20)

static struct arm_smccc_1_2_regs facts, loaned;

/* An answer as it was, or the number of a refusal. */
static void try(const char *what, u32 function, u64 first, u64 second)
{
	long answer = underpin_call(function, first, second).a0;

	pr_info("wrong %s: %ld\n", what, answer <= UNDERPIN_FIRST_REFUSAL ? UNDERPIN_FIRST_REFUSAL - answer : answer);
}

static int __init wrong_init(void)
{
	void *area = alloc_pages_exact(AREA_BYTES, GFP_KERNEL);
	u64 start = virt_to_phys(area), bell;

	if (!area)
		return -ENOMEM;
	facts = underpin_call(UNDERPIN_FACTS, 0, 0);
	loaned = underpin_call(UNDERPIN_LOANED, 0, 0);
	bell = facts.a11;
	try("odd", UNDERPIN_UPLINK, start + 8, bell);
	try("hidden", UNDERPIN_UPLINK, facts.a3, bell);
	try("lent", UNDERPIN_UPLINK, loaned.a0 ? 0 : loaned.a1, bell);
	try("around", UNDERPIN_UPLINK, -(u64)PAGE_SIZE, bell);
	try("device", UNDERPIN_UPLINK, 0, bell);
	try("private", UNDERPIN_UPLINK, start, 31);
	try("beyond", UNDERPIN_UPLINK, start, bell + 1);
	try("wide", UNDERPIN_UPLINK, start, bell | 1ULL << 32);
	/* Last, as it would be taken where there is none. */
	try("again", UNDERPIN_UPLINK, start, bell);
	try("frames", UNDERPIN_FRAMES, 0, 0);
	free_pages_exact(area, AREA_BYTES);
	return -ECANCELED;
}

module_init(wrong_init);
MODULE_DESCRIPTION("Calls that Underpin refuses, for tests");
MODULE_LICENSE("GPL");
