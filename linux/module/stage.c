// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * What the hypervisor starts in the place of this system when it ends while VMs need the machine
 * (abi/src/stage.rs), and what this system finds of one that it was started in the place of.
 */
#include "underpin.h"

#include <linux/module.h>
#include <linux/namei.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/panic_notifier.h>
#include <linux/reboot.h>
#include <linux/string.h>

static struct run staged;

static long unstage(void)
{
	return staged.pages ? run_reclaim(&staged, UNDERPIN_UNSTAGE) : 0;
}

static long stage(const char *name)
{
	struct path path;
	loff_t bytes;
	long answer = kern_path(name, LOOKUP_FOLLOW, &path);

	if (answer)
		return answer;
	bytes = i_size_read(d_inode(path.dentry));
	path_put(&path);
	answer = unstage();
	if (!answer)
		answer = run_take(&staged, bytes);
	if (answer)
		return answer;
	answer = run_load(&staged, name);
	if (answer >= 0)
		answer = underpin_call(UNDERPIN_STAGE, PFN_PHYS(staged.first),
				       staged.pages * PAGE_SIZE).a0;
	if (answer == UNDERPIN_NOT_STAGED)
		unstage();
	else if (answer)
		run_release(&staged);
	return answer;
}

/* "stage FILE" */
int serve_stage(struct answer *answer, char *words)
{
	return tell(answer, *words ? stage(words) : -EINVAL);
}

int serve_unstage(struct answer *answer, char *words)
{
	return tell(answer, unstage());
}

unsigned long staged_bytes(void)
{
	return staged.pages * PAGE_SIZE;
}

/* What the hypervisor has of this machine's memory since before this system was started. */
static void adopt(void)
{
	struct arm_smccc_1_2_regs regs;
	int n;

	for (n = 0; !(regs = underpin_call(UNDERPIN_LOANED, n, 0)).a0; n++) {
		if (!PageReserved(pfn_to_page(PHYS_PFN(regs.a1))))
			continue; /* the module was loaded before */
		if (regs.a3)
			run_adopt(&staged, regs.a1, regs.a2);
		else
			adopt_loan(regs.a1, regs.a2);
	}
}

static int on_panic(struct notifier_block *block, unsigned long event, void *message)
{
	underpin_call(UNDERPIN_DYING, 0, 0);
	return NOTIFY_DONE;
}

static struct notifier_block panics = { .notifier_call = on_panic };

/*
 * This system is about to end, in good order. The hypervisor must be beneath all CPUs to take them back;
 * and what kexec starts would know nothing of memory that is lent.
 */
static int on_end(struct notifier_block *block, unsigned long event, void *command)
{
	if (!lent_bytes())
		return NOTIFY_DONE;
	disks_stop();
	if (is_parked() && staged.pages && attach_all())
		pr_emerg("cannot attach for the end of this system: its VMs end with it\n");
	if (command && !strcmp(command, "kexec reboot")) {
		pr_emerg("no kexec while memory is lent: what is staged starts instead\n");
		emergency_restart();
	}
	return NOTIFY_DONE;
}

static struct notifier_block ends = { .notifier_call = on_end };

void stage_init(void)
{
	adopt();
	atomic_notifier_chain_register(&panic_notifier_list, &panics);
	register_reboot_notifier(&ends);
}

void stage_exit(void)
{
	unregister_reboot_notifier(&ends);
	atomic_notifier_chain_unregister(&panic_notifier_list, &panics);
}
