//! Where VMs go, and where their vCPUs are at home.

use model_addr::NodeId;
use model_scheduler::{Load, NodeSet, homes, place};

#[test]
fn new_vms_go_where_there_is_room() {
    let load = |weight, cpus| Load { weight, cpus };
    let loads = [load(512, 2), load(300, 1), load(0, 0), load(512, 4)];
    assert_eq!(place(256, NodeSet::ALL, &loads), Some(NodeId(3)));
    assert_eq!(place(256, NodeSet(0b11), &loads), Some(NodeId(0)));
    assert_eq!(place(256, NodeSet(0b100), &loads), None);
    assert_eq!(
        place(256, NodeSet::ALL, &[load(0, 1), load(0, 1)]),
        Some(NodeId(0))
    );
}

#[test]
fn large_vms_are_spread() {
    let homes = |nodes: &[(u8, u16)], most| {
        let nodes = nodes.iter().map(|(node, cpus)| (NodeId(*node), *cpus));
        let homes = homes(nodes, most).take(6);
        homes.map(|node| node.0).collect::<Vec<_>>()
    };
    assert_eq!(homes(&[(1, 8), (0, 8)], 6), [1, 1, 1, 1, 1, 1]);
    assert_eq!(homes(&[(1, 2), (3, 0), (0, 3)], 6), [1, 1, 0, 0, 0, 1]);
    assert_eq!(homes(&[(2, 4), (1, 4)], 1), [2, 1, 2, 1, 2, 1]);
    assert_eq!(homes(&[(0, 0)], 1), [0; 0]);
    assert_eq!(homes(&[(2, 4), (1, 4)], 0), [2, 1, 2, 1, 2, 1]);
}
