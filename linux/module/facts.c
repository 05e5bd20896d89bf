// SPDX-License-Identifier: GPL-2.0-or-later
/* What the hypervisor knows of the machine, CPU by CPU, and its log. */
#include "underpin.h"

#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/smp.h>

#define PSCI_VERSION 0x84000000

/* The registers of a call's results, as an array: X1 is the first. */
#define RESULTS(regs) (&(regs).a1)
#define ID_REGISTERS 16
/* X3 and on carry the bytes of the log. */
#define LOG_BYTES (15 * sizeof(unsigned long))

struct of_cpu {
	struct arm_smccc_1_2_regs facts, registers;
};

static void ask(void *into)
{
	struct of_cpu *found = into;

	found->facts = underpin_call(UNDERPIN_FACTS, num_online_cpus(), 0);
	found->registers = underpin_call(UNDERPIN_ID_REGISTERS, 0, 0);
}

static void say_cpu(struct answer *answer, int cpu, const struct of_cpu *found)
{
	const unsigned long *facts = RESULTS(found->facts);
	int n;

	say(answer, "{\"cpu\":%d,\"lists\":%lu,\"reach\":%lu,\"address_bits\":%lu,\"gic\":%lu,", cpu,
	    facts[4], facts[5], facts[6], facts[7]);
	say(answer, "\"flags\":%lu,\"refusal\":\"%s\",\"id\":[", facts[8],
	    refusal_name(facts[9]));
	for (n = 0; n < ID_REGISTERS; n++)
		say(answer, "%s%lu", n ? "," : "", RESULTS(found->registers)[n]);
	say(answer, "]}");
}

int serve_facts(struct answer *answer, char *words)
{
	struct arm_smccc_res psci;
	struct of_cpu found;
	const unsigned long *facts = RESULTS(found.facts);
	int cpu, first = true;

	arm_smccc_smc(PSCI_VERSION, 0, 0, 0, 0, 0, 0, 0, &psci);
	cpus_read_lock();
	for_each_online_cpu(cpu) {
		int error = smp_call_function_single(cpu, ask, &found, true);

		if (!error && (long)found.facts.a0 < 0)
			error = -EOPNOTSUPP;
		if (error) {
			cpus_read_unlock();
			return error;
		}
		if (first)
			say(answer,
			    "{\"revision\":%lu,\"version\":%lu,\"kept\":{\"start\":%lu,\"size\":%lu},\"psci\":%lu,\"cpus\":[",
			    facts[0], facts[1], facts[2], facts[3], psci.a0);
		else
			say(answer, ",");
		first = false;
		say_cpu(answer, cpu, &found);
	}
	cpus_read_unlock();
	say(answer, "]}\n");
	return 0;
}

/* All that the hypervisor still has of it. */
int serve_log(struct answer *answer, char *words)
{
	u64 at = 0;

	for (;;) {
		struct arm_smccc_1_2_regs regs = underpin_call(UNDERPIN_LOG, at, 0);
		int bytes = min_t(u64, regs.a2, LOG_BYTES);

		if ((long)regs.a0 < 0)
			return -EOPNOTSUPP;
		if (!bytes || answer->length + bytes >= answer->room)
			return 0;
		say(answer, "%.*s", bytes, (const char *)&regs.a3);
		at = regs.a1;
	}
}
