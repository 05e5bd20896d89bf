//! Requests as they come in: decoded, and checked as far as that goes without the machine.

use super::{
    EventsRequest, KEEP, MoveRequest, ProbeRequest, ReadRequest, ReclaimRequest, SetRequest,
    SpanMoveRequest, TRACE_ALL, TraceRequest, VmName, request,
};
use crate::bundle::VmRecord;
use zerocopy::FromBytes;

/// A request, decoded and checked as far as that goes without looking at the machine.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// [`request::HELLO`].
    Hello,
    /// A request about one VM that carries nothing but its name: its [`request`] number.
    About(u32, VmName),
    /// [`request::CONSOLE_INPUT`].
    ConsoleInput(VmName, &'a [u8]),
    /// [`request::CREATE`].
    Create(&'a VmRecord),
    /// [`request::SET`].
    Set(&'a SetRequest),
    /// [`request::POWER_OFF`].
    PowerOff,
    /// [`request::RECLAIM`].
    Reclaim(ReclaimRequest),
    /// A request that reads: its [`request`] number, and what is wanted.
    Read(u32, ReadRequest),
    /// [`request::NUMA_MOVE`].
    NumaMove(MoveRequest),
    /// [`request::TRACE`].
    Trace(TraceRequest),
    /// [`request::EVENTS`].
    Events(EventsRequest),
    /// [`request::PROBE`].
    Probe(ProbeRequest),
    /// [`request::SPAN_MOVE`].
    SpanMove(SpanMoveRequest),
    /// [`request::CLUSTER_LEAVE`].
    ClusterLeave,
    /// [`request::RECOUNT`].
    Recount(u64),
}

impl<'a> Request<'a> {
    /// Decodes a frame's payload; `None` where it is malformed. `payload` is aligned to 8 bytes
    /// (a description that is not is refused).
    pub fn decode(kind: u32, payload: &'a [u8]) -> Option<Self> {
        match kind {
            request::HELLO if payload.is_empty() => Some(Self::Hello),
            request::POWER_OFF if payload.is_empty() => Some(Self::PowerOff),
            request::CLUSTER_LEAVE if payload.is_empty() => Some(Self::ClusterLeave),
            request::START..=request::RESET | request::CONTINUE | request::SPAN_LEAVE => {
                let name = VmName::read_from_bytes(payload).ok()?;
                Some(Self::About(kind, checked(name)?))
            }
            request::CONSOLE_INPUT => {
                let (name, typed) = VmName::read_from_prefix(payload).ok()?;
                (typed.len() <= 4096).then_some(Self::ConsoleInput(checked(name)?, typed))
            }
            request::CREATE => described(payload).map(Self::Create),
            request::RECLAIM => {
                let reclaim = ReclaimRequest::read_from_bytes(payload).ok()?;
                checked(reclaim.name).map(|_| Self::Reclaim(reclaim))
            }
            request::NUMA_MOVE => {
                let wanted = MoveRequest::read_from_bytes(payload).ok()?;
                checked(wanted.name).map(|_| Self::NumaMove(wanted))
            }
            request::LIST
            | request::SHOW
            | request::NODES
            | request::CPUS
            | request::HOSTS
            | request::ENTRIES
            | request::REGIONS
            | request::PAGES
            | request::PAGE_COUNTS => {
                let asked = ReadRequest::read_from_bytes(payload).ok()?;
                asked.name.as_str().map(|_| Self::Read(kind, asked))
            }
            request::TRACE => {
                let asked = TraceRequest::read_from_bytes(payload).ok()?;
                let known = asked.classes == KEEP || asked.classes & !TRACE_ALL == 0;
                known.then_some(Self::Trace(asked))
            }
            request::EVENTS => EventsRequest::read_from_bytes(payload)
                .ok()
                .map(Self::Events),
            request::PROBE => ProbeRequest::read_from_bytes(payload).ok().map(Self::Probe),
            request::SPAN_MOVE => {
                let wanted = SpanMoveRequest::read_from_bytes(payload).ok()?;
                checked(wanted.name).map(|_| Self::SpanMove(wanted))
            }
            request::RECOUNT => u64::read_from_bytes(payload).ok().map(Self::Recount),
            request::SET => {
                let set = SetRequest::ref_from_bytes(payload).ok()?;
                checked(set.to.name).map(|_| Self::Set(set))
            }
            _ => None,
        }
    }
}

fn checked(name: VmName) -> Option<VmName> {
    (!name.is_empty() && name.as_str().is_some()).then_some(name)
}

fn described(payload: &[u8]) -> Option<&VmRecord> {
    let record = VmRecord::ref_from_bytes(payload).ok()?;
    checked(record.name)?;
    record.command_line.as_str().map(|_| record)
}
