// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * underpin0: the way out of VMs' switches, as a network device of this system, to be bridged or routed as
 * any other. It is there as long as the module is, so that what it is given (an address, a bridge) stays
 * while VMs come and go; it has a carrier while VMs are beside this system and a switch of theirs has a way
 * out. Frames go through an area that the hypervisor has too, while memory is lent (abi/src/uplink.rs).
 */
#include "underpin.h"

#include <linux/etherdevice.h>
#include <linux/gfp.h>
#include <linux/if_vlan.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>

#define HEAD_BYTES 4096
#define SLOTS 340
#define SLOT_BYTES 1536
#define FRAME_AT 8
#define FRAME_MAX (ETH_DATA_LEN + VLAN_ETH_HLEN)
#define AREA_BYTES (HEAD_BYTES + 2 * SLOTS * SLOT_BYTES)

/* The area's words, of 16 bits: a switch has a way out; an interrupt is wanted with the next frame. */
#define LINK 0
#define WANTS 1

static struct net_device *device;
static struct napi_struct napi;
/* Changed while nobody sends and nobody receives. */
static u8 *area;
/* The next slot to be read, and to be written. */
static unsigned int received, sent;
/* VMs have their part of the CPUs. */
static bool is_shared;
static DEFINE_SPINLOCK(carrier_lock);

static u16 *slot_at(unsigned int number)
{
	return (u16 *)(area + HEAD_BYTES + number * SLOT_BYTES);
}

/* Lets the hypervisor take all that is there; whether it takes anything. */
static bool push(void)
{
	long answer;

	do
		answer = underpin_call(UNDERPIN_FRAMES, 0, 0).a0;
	while (answer == UNDERPIN_MORE);
	return !answer;
}

/* A slot is the hypervisor's from its word on, and empty again when that has come back. */
static bool put(struct sk_buff *skb)
{
	u16 *slot = slot_at(SLOTS + sent);

	if (smp_load_acquire(slot) && (!push() || smp_load_acquire(slot)))
		return false;
	if (skb_copy_bits(skb, 0, (u8 *)slot + FRAME_AT, skb->len))
		return false;
	smp_store_release(slot, (u16)skb->len);
	sent = (sent + 1) % SLOTS;
	return true;
}

static netdev_tx_t net_xmit(struct sk_buff *skb, struct net_device *dev)
{
	bool is_on = area && READ_ONCE(is_shared);
	bool is_put = is_on && skb->len <= FRAME_MAX && put(skb);

	if (is_put) {
		dev->stats.tx_packets++;
		dev->stats.tx_bytes += skb->len;
	} else {
		dev->stats.tx_dropped++;
	}
	dev_consume_skb_any(skb);
	/* A batch is told of once, with its last; to nobody while VMs are parked. */
	if (is_on && !netdev_xmit_more())
		push();
	return NETDEV_TX_OK;
}

/* The next frame, if there is one. */
static bool receive(void)
{
	u16 *slot = slot_at(received);
	u16 bytes = smp_load_acquire(slot);
	struct sk_buff *skb;

	if (!bytes)
		return false;
	skb = bytes <= FRAME_MAX ? napi_alloc_skb(&napi, bytes) : NULL;
	if (skb)
		skb_put_data(skb, (u8 *)slot + FRAME_AT, bytes);
	smp_store_release(slot, 0);
	received = (received + 1) % SLOTS;
	if (!skb) {
		device->stats.rx_dropped++;
		return true;
	}
	device->stats.rx_packets++;
	device->stats.rx_bytes += bytes;
	skb->protocol = eth_type_trans(skb, device);
	napi_gro_receive(&napi, skb);
	return true;
}

/* What came before the hypervisor was asked for an interrupt has none. */
static void want(void)
{
	WRITE_ONCE(((u16 *)area)[WANTS], 1);
	smp_mb();
	if (READ_ONCE(*slot_at(received)))
		napi_schedule(&napi);
}

static int net_poll(struct napi_struct *unused, int budget)
{
	int done = 0;

	while (area && done < budget && receive())
		done++;
	if (done < budget && napi_complete_done(&napi, done) && area)
		want();
	return done;
}

static void show_carrier(void)
{
	unsigned long flags;

	spin_lock_irqsave(&carrier_lock, flags);
	if (is_shared && READ_ONCE(((u16 *)area)[LINK]))
		netif_carrier_on(device);
	else
		netif_carrier_off(device);
	spin_unlock_irqrestore(&carrier_lock, flags);
}

static irqreturn_t on_bell(int irq, void *unused)
{
	show_carrier();
	napi_schedule(&napi);
	return IRQ_HANDLED;
}

static int net_open(struct net_device *dev)
{
	int n;

	/* What came while it was down is old. */
	for (n = 0; n < SLOTS && area && smp_load_acquire(slot_at(received)); n++) {
		smp_store_release(slot_at(received), 0);
		received = (received + 1) % SLOTS;
		dev->stats.rx_dropped++;
	}
	napi_enable(&napi);
	netif_start_queue(dev);
	local_bh_disable();
	napi_schedule(&napi);
	local_bh_enable();
	return 0;
}

static int net_stop(struct net_device *dev)
{
	netif_stop_queue(dev);
	napi_disable(&napi);
	return 0;
}

static const struct net_device_ops operations = {
	.ndo_open = net_open,
	.ndo_stop = net_stop,
	.ndo_start_xmit = net_xmit,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

/* Frames go through this area from now on, or nowhere. */
static void set_area(u8 *new)
{
	bool is_up;

	rtnl_lock();
	is_up = netif_running(device);
	if (is_up)
		napi_disable(&napi);
	/* A poll that has said that it is complete still looks at the area. */
	synchronize_net();
	netif_tx_lock_bh(device);
	area = new;
	received = sent = 0;
	netif_tx_unlock_bh(device);
	if (is_up)
		napi_enable(&napi);
	rtnl_unlock();
}

/* The hypervisor has made VMs' world of what is lent: it gets an area. Without one VMs have no way out. */
void net_begin(void)
{
	u8 *new = alloc_pages_exact(AREA_BYTES, GFP_KERNEL | __GFP_ZERO);
	long answer;
	u32 intid;

	if (!new) {
		pr_err("no memory for %s: VMs have no way out\n", device->name);
		return;
	}
	set_area(new);
	intid = bell_take(on_bell, device);
	answer = intid ? underpin_call(UNDERPIN_UPLINK, virt_to_phys(new), intid).a0 : -ENODEV;
	if (!answer) {
		local_bh_disable();
		want();
		local_bh_enable();
		return;
	}
	pr_err("no way out for VMs by %s: %s\n", device->name,
	       intid ? refusal_name(answer) : "no interrupt");
	if (intid)
		bell_release(device);
	set_area(NULL);
	free_pages_exact(new, AREA_BYTES);
}

/* VMs have their CPUs from now on, or they have not: frames go nowhere. */
void net_share(bool on)
{
	if (!area)
		return;
	WRITE_ONCE(is_shared, on);
	show_carrier();
}

/* The hypervisor has nothing of the area any more. */
void net_end(void)
{
	u8 *old = area;

	if (!old)
		return;
	bell_release(device);
	WRITE_ONCE(is_shared, false);
	netif_carrier_off(device);
	set_area(NULL);
	free_pages_exact(old, AREA_BYTES);
}

int net_init(void)
{
	int error;

	device = alloc_etherdev(0);
	if (!device)
		return -ENOMEM;
	strscpy(device->name, "underpin%d", sizeof(device->name));
	device->netdev_ops = &operations;
	device->max_mtu = ETH_DATA_LEN;
	eth_hw_addr_random(device);
	netif_napi_add(device, &napi, net_poll);
	netif_carrier_off(device);
	error = register_netdev(device);
	if (error)
		free_netdev(device);
	return error;
}

void net_exit(void)
{
	unregister_netdev(device);
	free_netdev(device);
}
