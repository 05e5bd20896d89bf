// SPDX-License-Identifier: GPL-2.0-or-later
/* Attaching and detaching: all CPUs together. */
#include "underpin.h"

#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/kernel.h>
#include <linux/smp.h>
#include <linux/stop_machine.h>
#include <linux/workqueue.h>
#include <asm/sysreg.h>

/* How often a CPU that holds a message-signalled interrupt is asked again. */
#define TRIES 10000

static const char *last = "none";
/* Those of the last switch. */
static cpumask_t busy;
/* The answer that is told: the first refusal of any CPU. */
static atomic_long_t refusal;
/* How many CPUs the switch has changed. */
static atomic_t changed;
static unsigned long switches, retries;
/* The most counts of the system counter that a CPU's call of the last switch took. */
static atomic_long_t counts;
/* The counts that stopping all CPUs for it took: no pause that a CPU feels is longer. */
static unsigned long pause;

/* In the order of their numbers (abi/src/os0.rs). */
static const char *const refusals[] = {
	"none", "interrupts-open", "handling-interrupt", "too-few-list-registers", "late",
	"wrong-number", "already-attached", "not-attached", "elsewhere", "memory-out-of-reach",
	"injected", "no-blocks", "not-memory", "lent-already", "too-many-loans", "not-lent",
	"in-use", "not-open", "too-little", "vms-run", "cpus-off", "not-covered", "lent", "no-interrupt",
	"no-image", "misfit", "new-failed", "not-staged", "not-recorded",
};

const char *refusal_name(long answer)
{
	long number = UNDERPIN_FIRST_REFUSAL - answer;

	if (answer >= 0)
		return "none";
	if (number >= 1 && number < ARRAY_SIZE(refusals))
		return refusals[number];
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
	else
		atomic_inc(&changed);
}

/* On every CPU at the same time, with interrupts masked. */
static int attach_here(void *unused)
{
	note(call(UNDERPIN_ATTACH, num_online_cpus()));
	return 0;
}

static int detach_here(void *unused)
{
	long answer = call(UNDERPIN_DETACH, 0);

	if (answer == UNDERPIN_BUSY)
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
	long answer = UNDERPIN_BUSY;

	for (tries = 0; tries < TRIES && answer == UNDERPIN_BUSY; tries++) {
		local_irq_save(flags);
		answer = call(UNDERPIN_DETACH, 1);
		local_irq_restore(flags);
		retries++;
	}
	if (answer == UNDERPIN_BUSY) {
		/* Lets interrupts through again as soon as there is room for them. */
		local_irq_save(flags);
		answer = call(UNDERPIN_DETACH, 0);
		local_irq_restore(flags);
	}
	return answer;
}

/* Notes how long they all stood still. */
int on_all_cpus(cpu_stop_fn_t switch_here)
{
	u64 before = read_sysreg(cntvct_el0);
	int error = stop_machine(switch_here, NULL, cpu_online_mask);

	pause = read_sysreg(cntvct_el0) - before;
	return error;
}

static int leave_busy(void)
{
	int cpu, error = 0;

	for_each_cpu(cpu, &busy) {
		long answer = work_on_cpu(cpu, leave_here, NULL);

		if (answer == UNDERPIN_BUSY) {
			pr_err("cpu %d does not take its interrupts and stays attached\n", cpu);
			error = -EBUSY;
		} else {
			note(answer);
		}
	}
	return error;
}

static void begin(void)
{
	atomic_long_set(&refusal, 0);
	atomic_long_set(&counts, 0);
	atomic_set(&changed, 0);
	cpumask_clear(&busy);
}

/* Keeps the outcome of a switch, and tells how things stand. */
static int outcome(struct answer *answer, int error, const char *done)
{
	long refused = atomic_long_read(&refusal);

	/* After a switch that left some CPUs out, the others have nothing to do. */
	if (refused == UNDERPIN_NOT_ATTACHED && atomic_read(&changed))
		refused = 0;
	last = error == -EBUSY ? "holds-interrupts" : refusal_name(refused);
	if (!error && refused)
		error = -EREMOTEIO;
	if (!error) {
		switches++;
		pr_info("%s on %u CPUs\n", done, num_online_cpus());
	}
	serve_status(answer, "");
	return error;
}

/* Keeps the outcome of something else: an error, or what EL2 answered. */
int tell(struct answer *answer, long result)
{
	bool is_refusal = result <= UNDERPIN_FIRST_REFUSAL;

	last = refusal_name(is_refusal ? result : 0);
	serve_status(answer, "");
	return is_refusal ? -EREMOTEIO : result;
}

/* On all CPUs; VMs that are parked have theirs again. */
static int attach(void)
{
	int error;

	begin();
	error = on_all_cpus(attach_here);
	if (!error && !atomic_long_read(&refusal))
		note(unpark());
	return error;
}

int serve_attach(struct answer *answer, char *words)
{
	return outcome(answer, attach(), "attached");
}

/* For nobody who wants an answer. */
long attach_all(void)
{
	int error = attach();

	return error ? error : atomic_long_read(&refusal);
}

/* "detach [park]": with "park", VMs that stand still stay in the memory that is lent to them. */
int serve_detach(struct answer *answer, char *words)
{
	int error;

	begin();
	if (!strcmp(words, "park")) {
		long refused = park();

		if (refused)
			return tell(answer, refused);
	}
	/* A CPU that comes up meanwhile would come up as some of the others are. */
	cpu_hotplug_disable();
	error = on_all_cpus(detach_here);
	if (!error)
		error = leave_busy();
	cpu_hotplug_enable();
	/* Beneath all or none of it, VMs have their CPUs or do not. */
	if (error || atomic_long_read(&refusal))
		unpark();
	return outcome(answer, error, "detached");
}

int serve_status(struct answer *answer, char *words)
{
	struct arm_smccc_1_2_regs regs;
	int cpu;

	/* X1 is how it stands on the CPU that asks. */
	cpu = get_cpu();
	regs = underpin_call(UNDERPIN_STATUS, 0, 0);
	put_cpu();
	say(answer,
	    "{\"state\":\"%s\",\"beneath\":%llu,\"cpus\":%u,\"cpu\":%d,\"entries\":%llu,\"kept\":%llu,\"switches\":%lu,\"retries\":%lu,\"held\":%u,\"counts\":%ld,\"pause\":%lu,\"refusal\":\"%s\",\"lent\":%lu,\"spare\":%lu,\"loans\":%u,\"scattered\":%lu,\"staged\":%lu,\"parked\":%s,\"upgrades\":%llu,\"dma\":\"open\"}\n",
	    regs.a1 ? "attached" : "detached", (u64)regs.a4, num_online_cpus(), cpu, (u64)regs.a2,
	    (u64)regs.a3, switches, retries, cpumask_weight(&busy),
	    atomic_long_read(&counts), pause, last, lent_bytes(),
	    spare_bytes(), loan_count(), blocks_bytes(), staged_bytes(),
	    is_parked() ? "true" : "false", (u64)regs.a5);
	return 0;
}

/* "fail STEP CPU": the next switch fails there, once. For tests; most hypervisors refuse it. */
int serve_fail(struct answer *answer, char *words)
{
	unsigned int step, cpu;
	long refused;

	if (sscanf(words, "%u %u", &step, &cpu) != 2)
		return -EINVAL;
	refused = underpin_call(UNDERPIN_FAIL, step, cpu).a0;
	serve_status(answer, "");
	return refused ? -EOPNOTSUPP : 0;
}
