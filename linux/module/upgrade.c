// SPDX-License-Identifier: GPL-2.0-or-later
/* A new image of the hypervisor takes the old one's place: page by page first, then on all CPUs at once. */
#include "underpin.h"

#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/err.h>
#include <linux/fs.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/sched.h>

static atomic_long_t answer_of_all;

static long give(void *page, loff_t before, size_t size)
{
	struct arm_smccc_1_2_regs regs = {
		.a0 = UNDERPIN_GIVE_IMAGE,
		.a1 = virt_to_phys(page),
		.a2 = before,
		.a3 = size,
	};

	arm_smccc_1_2_hvc(&regs, &regs);
	return regs.a0;
}

/* The file's bytes, and that they are all. */
static long give_file(struct file *file, void *page)
{
	loff_t at = 0, before;
	ssize_t got;
	long answer;

	do {
		size_t size = 0;

		before = at;
		do {
			got = kernel_read(file, page + size, PAGE_SIZE - size, &at);
			if (got < 0)
				return got;
			size += got;
		} while (got && size < PAGE_SIZE);
		/* The last page can be full. */
		answer = size ? give(page, before, size) : 0;
		cond_resched();
	} while (!answer && got);
	return answer ? answer : give(page, at, 0);
}

static int upgrade_here(void *unused)
{
	long answer = underpin_call(UNDERPIN_UPGRADE, num_online_cpus(), 0).a0;

	if (answer < 0)
		atomic_long_cmpxchg(&answer_of_all, 0, answer);
	return 0;
}

static long upgrade(const char *path)
{
	struct file *file = filp_open(path, O_RDONLY, 0);
	void *page = (void *)__get_free_page(GFP_KERNEL);
	long answer = IS_ERR(file) ? PTR_ERR(file) : page ? give_file(file, page) : -ENOMEM;

	free_page((unsigned long)page);
	if (!IS_ERR(file))
		filp_close(file, NULL);
	if (answer)
		return answer;
	atomic_long_set(&answer_of_all, 0);
	cpu_hotplug_disable();
	answer = on_all_cpus(upgrade_here);
	cpu_hotplug_enable();
	if (!answer)
		answer = atomic_long_read(&answer_of_all);
	if (!answer)
		pr_info("%s has taken the hypervisor's place\n", path);
	return answer;
}

/* "upgrade FILE": the file's name is all that follows. */
int serve_upgrade(struct answer *answer, char *words)
{
	return tell(answer, upgrade(words));
}
