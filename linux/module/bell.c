// SPDX-License-Identifier: GPL-2.0-or-later
/* The interrupt by which the hypervisor tells this system that there is something in what they share. */
#include "underpin.h"

#include <linux/cpumask.h>
#include <linux/irqdomain.h>
#include <linux/of.h>

/* Shared interrupts are numbered from here. */
#define FIRST_SPI 32

static unsigned int bell, users;

/* The highest shared interrupt of the machine: no device has it, as far as the device tree knows. */
static unsigned int map_bell(u32 intid)
{
	struct device_node *gic = of_find_compatible_node(NULL, NULL, "arm,gic-v3");
	struct irq_fwspec spec = { .param_count = 3 };
	unsigned int irq;

	if (!gic || intid < FIRST_SPI)
		return 0;
	spec.fwnode = of_fwnode_handle(gic);
	spec.param[1] = intid - FIRST_SPI;
	spec.param[2] = IRQ_TYPE_EDGE_RISING;
	irq = irq_create_fwspec_mapping(&spec);
	of_node_put(gic);
	return irq;
}

static void unmap_bell(void)
{
	if (!users) {
		irq_dispose_mapping(bell);
		bell = 0;
	}
}

/* All who have it are called; the number by which the hypervisor knows it. */
u32 bell_take(irq_handler_t handler, void *whose)
{
	u32 intid = underpin_call(UNDERPIN_FACTS, num_online_cpus(), 0).a11;
	int error = -ENODEV;

	if (!bell)
		bell = map_bell(intid);
	if (bell)
		error = request_irq(bell, handler, IRQF_SHARED, "underpin", whose);
	if (!error) {
		users++;
		return intid;
	}
	if (bell)
		unmap_bell();
	pr_err("interrupt %u cannot be had (%d)\n", intid, error);
	return 0;
}

void bell_release(void *whose)
{
	free_irq(bell, whose);
	users--;
	unmap_bell();
}
