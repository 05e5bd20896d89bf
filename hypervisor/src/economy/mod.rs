//! What VMs owe each other and the machine: admission, repayment, and pages that leave memory.

pub mod ledger;
pub mod paging;
