/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the parts of the module have in common. */
#ifndef UNDERPIN_H
#define UNDERPIN_H

/* For all that follows: the kernel asks whether it is defined. */
#define pr_fmt(fmt) "underpin: " fmt

#include <linux/arm-smccc.h>
#include <linux/interrupt.h>
#include <linux/sizes.h>
#include <linux/stop_machine.h>
#include <linux/types.h>

/* The calls of abi/src/os0.rs. Refusal number n is -0x100 - n. */
#define UNDERPIN_STATUS 0xc6000040
#define UNDERPIN_ATTACH 0xc6000041
#define UNDERPIN_DETACH 0xc6000042
#define UNDERPIN_FACTS 0xc6000043
#define UNDERPIN_ID_REGISTERS 0xc6000044
#define UNDERPIN_LOG 0xc6000045
#define UNDERPIN_FAIL 0xc6000046
#define UNDERPIN_GIVE_IMAGE 0xc6000047
#define UNDERPIN_UPGRADE 0xc6000048
#define UNDERPIN_LEND 0xc6000050
#define UNDERPIN_REPAY 0xc6000051
#define UNDERPIN_OPEN 0xc6000052
#define UNDERPIN_CLOSE 0xc6000053
#define UNDERPIN_SHARE 0xc6000054
#define UNDERPIN_TELL 0xc6000055
#define UNDERPIN_HEAR 0xc6000056
#define UNDERPIN_SERVED 0xc6000057
#define UNDERPIN_STAGE 0xc6000058
#define UNDERPIN_UNSTAGE 0xc6000059
#define UNDERPIN_LOANED 0xc600005a
#define UNDERPIN_SERVE 0xc600005b
#define UNDERPIN_DYING 0xc600005c
#define UNDERPIN_UPLINK 0xc600005d
#define UNDERPIN_FRAMES 0xc600005e
#define UNDERPIN_LEND_PAGES 0xc600005f
#define UNDERPIN_BUSY 1
#define UNDERPIN_MORE 1
#define UNDERPIN_FIRST_REFUSAL (-0x100)
#define UNDERPIN_NOT_ATTACHED (UNDERPIN_FIRST_REFUSAL - 7)
#define UNDERPIN_NOT_LENT (UNDERPIN_FIRST_REFUSAL - 15)
#define UNDERPIN_NOT_OPEN (UNDERPIN_FIRST_REFUSAL - 17)
#define UNDERPIN_NOT_STAGED (UNDERPIN_FIRST_REFUSAL - 27)

/* What a request says: one line of JSON, or text. */
struct answer {
	char *text;
	size_t length, room;
	bool is_given;
};

__printf(2, 3) void say(struct answer *answer, const char *format, ...);

/* The name of the refusal that a call answered. */
const char *refusal_name(long answer);

/*
 * What can be asked for: each is served under one lock, with the words that follow its name, and
 * gives 0 or an error; what it says is read from the file that asked, in either case.
 */
int serve_status(struct answer *answer, char *words);
int serve_attach(struct answer *answer, char *words);
int serve_detach(struct answer *answer, char *words);
int serve_facts(struct answer *answer, char *words);
int serve_log(struct answer *answer, char *words);
int serve_fail(struct answer *answer, char *words);
int serve_lend(struct answer *answer, char *words);
int serve_repay(struct answer *answer, char *words);
int serve_upgrade(struct answer *answer, char *words);
int serve_stage(struct answer *answer, char *words);
int serve_unstage(struct answer *answer, char *words);

/* Calls it on all CPUs at the same time, with interrupts masked. */
int on_all_cpus(cpu_stop_fn_t switch_here);

/* Keeps an outcome as the last, says how things stand, and gives what the request ends with. */
int tell(struct answer *answer, long result);

/* What is lent lies in blocks of 2 MiB. */
#define BLOCK_PAGES (SZ_2M / PAGE_SIZE)

/* Takes pages that follow each other from this system; marks pages as lent, or as not. */
int pages_take(unsigned long first, unsigned long count);
void pages_mark(unsigned long first, unsigned long count, bool lent);

/* Pages of this system that follow each other, which the hypervisor has. */
struct run {
	unsigned long first, pages;
	/* Lent by the system before this one. */
	bool is_adopted;
};

/* Takes at least so many bytes; gives them back. */
int run_take(struct run *run, unsigned long bytes);
void run_adopt(struct run *run, unsigned long start, unsigned long bytes);
void run_release(struct run *run);
/* The file's bytes into a run; how many. */
long run_load(struct run *run, const char *path);
/* Asks the hypervisor for a run, block by block, by that call, and gives it back to this system. */
long run_reclaim(struct run *run, u32 function);

/*
 * Pages of blocks, at least so many if there are: how many. Those that were taken are lent; are asked for again
 * and this system's; in how many blocks they are.
 */
unsigned long blocks_take(unsigned long count);
long blocks_lend(void);
long blocks_reclaim(void);
unsigned int blocks_count(void);
unsigned long blocks_bytes(void);

/* What is staged to be started in this system's place, and what this system was started in the place of. */
void stage_init(void);
void stage_exit(void);
unsigned long staged_bytes(void);
void adopt_loan(unsigned long start, unsigned long bytes);

long attach_all(void);

/* The memory that is lent, and in how many runs and blocks; whether it is with no CPU shared, and to that state and back. */
unsigned long lent_bytes(void);
unsigned long spare_bytes(void);
unsigned int loan_count(void);
bool is_parked(void);
long park(void);
long unpark(void);

/* /dev/underpin-control. */
int control_init(void);
void control_exit(void);

/* /dev/underpin-disks, and what of it the hypervisor gets while memory is lent. */
int disks_init(void);
void disks_exit(void);
unsigned long disks_begin(u32 *intid);
unsigned long disks_adopt(u32 *intid);
void disks_end(void);
/* Nothing is answered any more. */
void disks_stop(void);

/* The interrupt by which the hypervisor tells, for one more user: its number, or 0. */
u32 bell_take(irq_handler_t handler, void *whose);
void bell_release(void *whose);

/* The network device: what of it the hypervisor gets while memory is lent, and whether VMs run then. */
int net_init(void);
void net_exit(void);
void net_begin(void);
void net_share(bool on);
void net_end(void);

/* Calls EL2 on the executing CPU with up to two arguments. */
static inline struct arm_smccc_1_2_regs underpin_call(u32 function, u64 first, u64 second)
{
	struct arm_smccc_1_2_regs regs = { .a0 = function, .a1 = first, .a2 = second };

	arm_smccc_1_2_hvc(&regs, &regs);
	return regs;
}

#endif
