// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * /dev/underpin: what is asked of the hypervisor beneath this system.
 *
 * Each open file is a conversation: what is written is one request, a word with words after it, and
 * what is read then is its answer, whether it succeeded or not. A file that has asked nothing reads
 * the answer to "status". A request that the hypervisor refuses fails with EREMOTEIO, and its answer
 * names the refusal. The hypervisor checks everything again; nobody but root may open the file.
 */
#include "underpin.h"

#include <linux/acpi.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/of.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <asm/ptrace.h>
#include <asm/sysreg.h>

#define UID 0x8600ff01
/* b3ad1d54-6cf5-4a5c-9a3c-2f1f4f0b7d26, as SMCCC returns it. */
static const u32 uid[4] = { 0x541dadb3, 0x5c4af56c, 0x1f2f3c9a, 0x267d0b4f };

/* The most bytes of a request, which may name a file, and of an answer. */
#define REQUEST_MAX (PATH_MAX + 64)
#define ANSWER_MAX (64 << 10)

static const struct {
	const char *name;
	int (*serve)(struct answer *answer, char *words);
} requests[] = {
	{ "status", serve_status },
	{ "attach", serve_attach },
	{ "detach", serve_detach },
	{ "facts", serve_facts },
	{ "log", serve_log },
	{ "fail", serve_fail },
	{ "lend", serve_lend },
	{ "repay", serve_repay },
	{ "upgrade", serve_upgrade },
	{ "stage", serve_stage },
	{ "unstage", serve_unstage },
};

/* One request at a time, whoever asks. */
static DEFINE_MUTEX(serving);

void say(struct answer *answer, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	answer->length += vscnprintf(answer->text + answer->length, answer->room - answer->length,
				     format, arguments);
	va_end(arguments);
}

static int serve(struct answer *answer, char *words)
{
	char *name = strsep(&words, " ");
	int error = -EINVAL;
	size_t n;

	mutex_lock(&serving);
	answer->is_given = true;
	answer->length = 0;
	for (n = 0; n < ARRAY_SIZE(requests); n++)
		if (!strcmp(name, requests[n].name))
			error = requests[n].serve(answer, words ? strim(words) : "");
	mutex_unlock(&serving);
	return error;
}

static int underpin_open(struct inode *inode, struct file *file)
{
	struct answer *answer;

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	answer = kzalloc(sizeof(*answer), GFP_KERNEL);
	if (!answer)
		return -ENOMEM;
	answer->room = ANSWER_MAX;
	answer->text = kvzalloc(ANSWER_MAX, GFP_KERNEL);
	if (!answer->text) {
		kfree(answer);
		return -ENOMEM;
	}
	file->private_data = answer;
	return 0;
}

static int underpin_release(struct inode *inode, struct file *file)
{
	struct answer *answer = file->private_data;

	kvfree(answer->text);
	kfree(answer);
	return 0;
}

static ssize_t underpin_write(struct file *file, const char __user *from, size_t size, loff_t *at)
{
	char *words;
	int error;

	if (size >= REQUEST_MAX)
		return -EINVAL;
	words = memdup_user_nul(from, size);
	if (IS_ERR(words))
		return PTR_ERR(words);
	error = serve(file->private_data, strim(words));
	kfree(words);
	/* The answer is read from its beginning. */
	*at = 0;
	return error ? error : size;
}

static ssize_t underpin_read(struct file *file, char __user *to, size_t size, loff_t *at)
{
	struct answer *answer = file->private_data;
	char words[] = "status";
	ssize_t taken;

	if (!answer->is_given) {
		int error = serve(answer, words);

		if (error)
			return error;
	}
	mutex_lock(&serving);
	taken = simple_read_from_buffer(to, size, at, answer->text, answer->length);
	mutex_unlock(&serving);
	return taken;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = underpin_open,
	.release = underpin_release,
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

/* Whether firmware is called by SMC. Where it is not, an SMC may be undefined. */
static bool has_smc(void)
{
	struct device_node *node;
	const char *method = NULL;
	bool is_smc;

	if (!acpi_disabled) {
#ifdef CONFIG_ACPI
		return (acpi_gbl_FADT.arm_boot_flags & ACPI_FADT_PSCI_COMPLIANT) &&
		       !(acpi_gbl_FADT.arm_boot_flags & ACPI_FADT_PSCI_USE_HVC);
#endif
	}
	node = of_find_compatible_node(NULL, NULL, "arm,psci-0.2");
	if (!node)
		node = of_find_compatible_node(NULL, NULL, "arm,psci-1.0");
	is_smc = node && !of_property_read_string(node, "method", &method) && !strcmp(method, "smc");
	of_node_put(node);
	return is_smc;
}

/* By SMC, which firmware refuses where no hypervisor answers: an HVC would be undefined there. */
static bool is_beneath(void)
{
	struct arm_smccc_res res;

	if (read_sysreg(CurrentEL) != CurrentEL_EL1) {
		pr_err("this kernel started at EL2: nothing is beneath it\n");
		return false;
	}
	if (!has_smc()) {
		pr_err("firmware is not called by SMC: Underpin is not beneath this system\n");
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
	int error;

	if (!is_beneath())
		return -ENODEV;
	error = control_init();
	if (error)
		return error;
	error = disks_init();
	if (error)
		goto no_disks;
	error = net_init();
	if (error)
		goto no_net;
	error = misc_register(&device);
	if (!error) {
		stage_init();
		return 0;
	}
	net_exit();
no_net:
	disks_exit();
no_disks:
	control_exit();
	return error;
}

static void __exit underpin_exit(void)
{
	misc_deregister(&device);
	stage_exit();
	net_exit();
	disks_exit();
	control_exit();
}

module_init(underpin_init);
module_exit(underpin_exit);
MODULE_DESCRIPTION("Underpin beneath a running system: attach, detach and what else is asked of it");
MODULE_LICENSE("GPL");
