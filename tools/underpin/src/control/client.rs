//! One command's side of the control channel.

mod hosts;

use super::{
    codec::{Codec, Frame, encode},
    local,
};
use crate::failure::{Failure, Result, exit, reason};
use abi::{
    Text,
    bundle::VmRecord,
    control::{
        CpuStatus, EntryStatus, EventsHeader, EventsRequest, MachineStatus, MoveRequest,
        NodeStatus, PageCounts, PageStatus, REPLY, RawVcpu, RawVm, ReadRequest, ReclaimRequest,
        RecountStatus, RegionStatus, ReplyHeader, SetRequest, TraceEvent, TraceRequest,
        TraceStatus, VmName, code, event, request, state,
    },
};
use model_entitlement::Terms;
use std::{
    collections::VecDeque,
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};
use tools_abi::status::{
    FitStatus, MachineMem, MemStatus, Needs, NumaStatus, VcpuStatus, VmStatus, WhyStatus,
};
use zerocopy::{FromBytes, FromZeros as _, IntoBytes as _};

/// How long the hypervisor may take to answer, on a slow machine under emulation.
const ANSWER_TIME: Duration = Duration::from_mins(1);
/// More records of a kind than a machine can have.
const RECORDS_MAX: usize = 64 * 1024;
/// More pages than a VM can have (`vmfile::MEMORY`).
const PAGES_MAX: usize = 64 << 20;
/// Bytes of a page.
const PAGE: u64 = 4096;
/// Events kept while a reply is awaited; the oldest go first.
const EVENTS_MAX: usize = 1024;

/// What the hypervisor answered.
#[derive(Clone, Debug)]
pub struct Reply {
    header: ReplyHeader,
    body: Vec<u8>,
}

impl Reply {
    /// The number in the answer's header.
    pub fn value(&self) -> u64 {
        self.header.value
    }

    /// The answer's only record, or its first with what follows it.
    fn first<T: FromBytes>(&self) -> Result<(T, &[u8])> {
        T::read_from_prefix(&self.body).map_err(|_| garbled())
    }

    fn records<T: FromBytes>(&self) -> Result<Vec<T>> {
        if self.body.len() != self.header.count as usize * size_of::<T>() {
            return Err(garbled());
        }
        records(&self.body)
    }
}

fn records<T: FromBytes>(bytes: &[u8]) -> Result<Vec<T>> {
    let records = bytes.chunks(size_of::<T>()).map(T::read_from_bytes);
    records
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| garbled())
}

/// Sends requests and takes answers and events.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    codec: Codec,
    events: VecDeque<Frame>,
    tag: u32,
    /// The machine's end is no accident.
    shut_down: bool,
    /// The member of the cluster that is asked, where it is another machine than the one that the stream leads to.
    at: Option<VmName>,
}

impl Client {
    /// Speaks over this stream, to a broker or to the hypervisor itself.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            codec: Codec::default(),
            events: VecDeque::new(),
            tag: 0,
            shut_down: false,
            at: None,
        }
    }

    /// The same, for requests to that member of the machine's cluster. Its events do not come.
    ///
    /// # Errors
    /// No host can have that name.
    pub fn at(mut self, host: &str) -> Result<Self> {
        let name = Text::new(host).filter(|name| !name.is_empty());
        let failure = || Failure::new(exit::USAGE, format!("'{host}' cannot be a host's name"));
        let help = "use a name that `underpin cluster` shows";
        self.at = Some(name.ok_or_else(|| failure().help(help))?);
        Ok(self)
    }

    /// Sends a request (`abi::control::request` or [`super::local`]) and waits for its answer.
    /// A refusal is a failure with the hypervisor's code and sentence.
    pub fn request(&mut self, kind: u32, parts: &[&[u8]]) -> Result<Reply> {
        self.request_within(kind, parts, ANSWER_TIME)
    }

    /// As [`Client::request`], with a time of one's own.
    pub fn request_within(&mut self, kind: u32, parts: &[&[u8]], time: Duration) -> Result<Reply> {
        let deadline = Instant::now() + time;
        self.tag = self.tag.wrapping_add(1);
        let to = self.at.map(|name| ReadRequest {
            name,
            from: kind.into(),
        });
        let kind = to.map_or(kind, |_| request::AT_HOST);
        let before = to.iter().map(ReadRequest::as_bytes);
        let parts: Vec<&[u8]> = before.chain(parts.iter().copied()).collect();
        let sent = self.stream.write_all(&encode(kind, self.tag, &parts));
        if let Err(error) = sent {
            // What was sent before the end may say why.
            while let Ok(Some(_)) = self.frame(Some(deadline)) {}
            return Err(self.lost(&error));
        }
        loop {
            let Some(frame) = self.frame(Some(deadline))? else {
                let message = format!("the hypervisor has not answered for {} s", time.as_secs());
                return Err(Failure::new(exit::TIMEOUT, message).help(
                    "look at the end of its log, hypervisor.log in the machine's directory",
                ));
            };
            if frame.kind == kind | REPLY && frame.tag == self.tag {
                return accept(&frame.payload);
            }
            self.keep(frame);
        }
    }

    /// The next event; `None` when none came within `time`.
    pub fn event(&mut self, time: Option<Duration>) -> Result<Option<Frame>> {
        let deadline = time.map(|time| Instant::now() + time);
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            match self.frame(deadline)? {
                Some(frame) => self.keep(frame),
                None => return Ok(None),
            }
        }
    }

    fn keep(&mut self, frame: Frame) {
        if frame.kind & REPLY == 0 {
            if self.events.len() == EVENTS_MAX {
                self.events.pop_front();
            }
            self.events.push_back(frame);
        }
    }

    fn frame(&mut self, deadline: Option<Instant>) -> Result<Option<Frame>> {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.codec.next_frame() {
                Some(frame) if frame.kind == local::SHUT_DOWN => self.shut_down = true,
                Some(frame) => return Ok(Some(frame)),
                None => {}
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            if let Err(error) = self.stream.set_read_timeout(left) {
                return Err(self.lost(&error));
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(self.lost(&io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => self.codec.push(buffer.get(..n).unwrap_or_default()),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.lost(&error)),
            }
        }
    }

    /// Why the connection has ended.
    fn lost(&self, error: &io::Error) -> Failure {
        if !self.shut_down {
            return lost(error);
        }
        let message = "the machine has been shut down";
        Failure::new(exit::NO_MACHINE, message).help("start one: underpin sim FILE...")
    }

    /// What the machine is.
    pub fn hello(&mut self, time: Duration) -> Result<MachineStatus> {
        Ok(self.request_within(request::HELLO, &[], time)?.first()?.0)
    }

    /// What is counted of all VMs.
    pub fn vms(&mut self) -> Result<Vec<RawVm>> {
        self.read(request::LIST, VmName::default())
    }

    /// All VMs.
    pub fn list(&mut self) -> Result<Vec<VmStatus>> {
        Ok(self.vms()?.iter().map(VmStatus::from).collect())
    }

    /// The memory of all VMs that run.
    pub fn mem(&mut self) -> Result<Vec<MemStatus>> {
        let machine = self.hello(ANSWER_TIME)?;
        let vms = self.vms()?;
        let running = vms.iter().filter(|vm| runs(vm));
        Ok(running.map(|vm| MemStatus::of(vm, &machine)).collect())
    }

    /// All records of a kind.
    fn read<T: FromBytes>(&mut self, kind: u32, name: VmName) -> Result<Vec<T>> {
        let mut all: Vec<T> = Vec::new();
        self.in_parts(kind, name, |reply, _| {
            all.extend(reply.records()?);
            if all.len() <= RECORDS_MAX {
                Ok(())
            } else {
                Err(garbled())
            }
        })?;
        Ok(all)
    }

    /// What is counted of one VM.
    fn vm(&mut self, vm: &str) -> Result<RawVm> {
        let found = self.read(request::LIST, vm_name(vm)?)?;
        found.into_iter().next().ok_or_else(garbled)
    }

    /// The machine's memory.
    pub fn machine_mem(&mut self) -> Result<MachineMem> {
        let machine = self.hello(ANSWER_TIME)?;
        Ok(MachineMem::of(&machine, &self.nodes()?))
    }

    /// The regions of memory that VMs share on purpose.
    pub fn regions(&mut self) -> Result<Vec<RegionStatus>> {
        self.read(request::REGIONS, VmName::default())
    }

    /// What is behind the pages of a VM.
    fn page_counts(&mut self, vm: &str) -> Result<PageCounts> {
        let mut sum = PageCounts::new_zeroed();
        self.in_parts(request::PAGE_COUNTS, vm_name(vm)?, |reply, _| {
            let part: PageCounts = reply.first()?.0;
            let parts = part.private.iter().chain(&part.nodes);
            let sums = sum.private.iter_mut().chain(&mut sum.nodes);
            sums.zip(parts)
                .for_each(|(sum, part)| *sum = sum.saturating_add(*part));
            sum.no_twin = sum.no_twin.saturating_add(part.no_twin);
            sum.shared = sum.shared.saturating_add(part.shared);
            Ok(())
        })?;
        Ok(sum)
    }

    /// Why a VM's pages are not shared.
    pub fn why(&mut self, vm: &str) -> Result<WhyStatus> {
        Ok(WhyStatus::from(&self.page_counts(vm)?))
    }

    /// Where a VM's memory is.
    pub fn numa(&mut self, vm: &str) -> Result<NumaStatus> {
        let pages = self.page_counts(vm)?;
        let (raw, machine) = (self.vm(vm)?, self.hello(ANSWER_TIME)?);
        Ok(NumaStatus::of(&raw, &pages, &machine))
    }

    /// Lets a VM's memory move to a node.
    pub fn numa_move(&mut self, vm: &str, node: u8) -> Result<()> {
        let (name, node) = (vm_name(vm)?, node.into());
        let asked = MoveRequest { name, node };
        let moves = self.request(request::NUMA_MOVE, &[asked.as_bytes()]);
        moves.map(drop).map_err(|failure| match failure.code() {
            exit if u32::from(exit) == code::IMPOSSIBLE => {
                failure.help("`underpin nodes` shows the nodes")
            }
            _ => failure,
        })
    }

    /// Asks a VM for memory; tells how many bytes it is to give.
    pub fn reclaim(&mut self, vm: &str, bytes: u64) -> Result<u64> {
        let name = vm_name(vm)?;
        let asked = ReclaimRequest { name, bytes };
        let reply = self.request(request::RECLAIM, &[asked.as_bytes()])?;
        Ok(reply.first()?.0)
    }

    /// Compares the frame table with the maps of VMs.
    pub fn recount(&mut self) -> Result<RecountStatus> {
        let mut from = 0_u64;
        loop {
            let reply = self.request(request::RECOUNT, &[from.as_bytes()])?;
            let status: RecountStatus = reply.first()?.0;
            match status.next {
                0 => return Ok(status),
                next if next > from => from = next,
                _ => return Err(garbled()),
            }
        }
    }

    /// How many more VMs of a description would start.
    pub fn fit(&mut self, vm: &VmRecord) -> Result<FitStatus> {
        let known = self.regions()?;
        let regions = vm.regions.iter().take_while(|it| !it.name.is_empty());
        let missing = regions.filter(|it| !known.iter().any(|known| known.name == it.name));
        let missing = missing.fold(0_u64, |sum, it| sum.saturating_add(it.size / PAGE));
        let needs = Needs {
            terms: Terms::of(vm),
            regions: missing,
            vcpus: vm.vcpus,
            is_alone: vm.is_alone(),
        };
        let machine = self.whole_machine()?;
        let node = u64::BITS - vm.nodes.leading_zeros();
        if node > machine.nodes {
            let (node, nodes) = (node - 1, machine.nodes);
            let message = format!("there is no node {node}: the machine has {nodes}, from 0 on");
            return Err(Failure::new(code::IMPOSSIBLE as u8, message));
        }
        Ok(FitStatus::of(&needs, &machine))
    }

    /// As [`Client::fit`], for a VM that the machine knows and that does not run.
    pub fn fit_again(&mut self, vm: &str) -> Result<FitStatus> {
        let needs = Needs::from(&self.vm(vm)?);
        Ok(FitStatus::of(&needs, &self.whole_machine()?))
    }

    /// The machine, for those who may know what fits.
    fn whole_machine(&mut self) -> Result<MachineStatus> {
        let machine = self.hello(ANSWER_TIME)?;
        if machine.capacity == 0 {
            let message = "a VM with control = \"read\" may not ask what would fit";
            return Err(Failure::new(code::NOT_ALLOWED as u8, message));
        }
        Ok(machine)
    }

    /// All pages of a VM that something is behind, in the order of their addresses.
    pub fn pages(&mut self, vm: &str) -> Result<Vec<PageStatus>> {
        let mut pages: Vec<PageStatus> = Vec::new();
        self.in_parts(request::PAGES, vm_name(vm)?, |reply, from| {
            let more: Vec<PageStatus> = reply.records()?;
            let rises = more.is_sorted_by(|a, b| a.address / PAGE < b.address / PAGE);
            let is_behind = more.first().is_none_or(|first| first.address >= from);
            pages.extend(more);
            if rises && is_behind && pages.len() <= PAGES_MAX {
                Ok(())
            } else {
                Err(garbled())
            }
        })?;
        Ok(pages)
    }

    /// Reads until nothing is left. Each part is given to `take`, with where it begins.
    fn in_parts(
        &mut self,
        kind: u32,
        name: VmName,
        mut take: impl FnMut(&Reply, u64) -> Result<()>,
    ) -> Result<()> {
        let mut from = 0;
        loop {
            let asked = ReadRequest { name, from };
            let reply = self.request(kind, &[asked.as_bytes()])?;
            take(&reply, from)?;
            match reply.value() {
                0 => return Ok(()),
                next if next > from => from = next,
                _ => return Err(garbled()),
            }
        }
    }

    /// One VM and its vCPUs.
    pub fn show(&mut self, vm: &str) -> Result<(VmStatus, Vec<VcpuStatus>)> {
        let raw = self.vm(vm)?;
        let vcpus: Vec<RawVcpu> = self.read(request::SHOW, raw.name)?;
        let vcpus = vcpus.iter().map(VcpuStatus::from).collect();
        Ok((VmStatus::from(&raw), vcpus))
    }

    /// A request that carries a VM's name and nothing else.
    pub fn about(&mut self, kind: u32, vm: &str) -> Result<Reply> {
        self.request(kind, &[vm_name(vm)?.as_bytes()])
    }

    /// Changes what can be changed while a VM runs.
    pub fn set(&mut self, set: &SetRequest) -> Result<()> {
        self.request(request::SET, &[set.as_bytes()]).map(drop)
    }

    /// Adds a VM.
    pub fn create(&mut self, vm: &VmRecord) -> Result<()> {
        self.request(request::CREATE, &[vm.as_bytes()]).map(drop)
    }

    /// The machine's nodes.
    pub fn nodes(&mut self) -> Result<Vec<NodeStatus>> {
        self.read(request::NODES, VmName::default())
    }

    /// The machine's CPUs.
    pub fn cpus(&mut self) -> Result<Vec<CpuStatus>> {
        self.read(request::CPUS, VmName::default())
    }

    /// Turns classes of events on, and all others off (`abi::control::KEEP` only asks); tells how
    /// tracing stands.
    pub fn trace(&mut self, classes: u32) -> Result<TraceStatus> {
        let asked = TraceRequest {
            classes,
            reserved: 0,
        };
        let reply = self.request(request::TRACE, &[asked.as_bytes()])?;
        Ok(reply.first()?.0)
    }

    /// Events of a pCPU from a number on, as many as come at once; the number to ask for next, and
    /// how many were lost.
    pub fn events(&mut self, cpu: u32, from: u64) -> Result<(EventsHeader, Vec<TraceEvent>)> {
        let asked = EventsRequest {
            cpu,
            reserved: 0,
            from,
        };
        let reply = self.request(request::EVENTS, &[asked.as_bytes()])?;
        let (header, rest) = reply.first::<EventsHeader>()?;
        let events: Vec<TraceEvent> = records(rest)?;
        let counted = from.checked_add(header.lost);
        let counted = counted.and_then(|n| n.checked_add(events.len() as u64));
        if counted != Some(header.next) {
            return Err(garbled());
        }
        Ok((header, events))
    }

    /// What is in the machine's bundle.
    pub fn entries(&mut self) -> Result<Vec<EntryStatus>> {
        self.read(request::ENTRIES, VmName::default())
    }

    /// Types at a VM's console; tells how many bytes it took.
    pub fn type_at(&mut self, vm: &str, bytes: &[u8]) -> Result<usize> {
        let reply = self.request(request::CONSOLE_INPUT, &[vm_name(vm)?.as_bytes(), bytes])?;
        let (taken, _): (u64, _) = reply.first()?;
        Ok(usize::try_from(taken)
            .unwrap_or(usize::MAX)
            .min(bytes.len()))
    }

    /// Asks the broker for an event whenever the VM has written to its console; see
    /// [`local::WATCH`].
    pub fn watch(&mut self, vm: &str) -> Result<()> {
        self.about(local::WATCH, vm).map(drop)
    }

    /// Waits until the machine is gone; `false` when it took longer than `time`.
    pub fn wait_gone(&mut self, time: Duration) -> Result<bool> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.event(Some(left)) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(false),
                Err(failure) if failure.is_gone() => return Ok(true),
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Waits until a VM is in a state (`abi::control::state`); `None` when it took longer than
    /// `time`.
    pub fn wait_state(
        &mut self,
        vm: &str,
        wanted: u32,
        time: Duration,
    ) -> Result<Option<VmStatus>> {
        let deadline = Instant::now() + time;
        let (mut status, _) = self.show(vm)?;
        // What was told before that answer is older than it.
        self.events.clear();
        while status.state != wanted {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(frame) = self.event(Some(left))? else {
                return Ok(None);
            };
            match state_event(&frame) {
                Some(changed) if changed.name == status.name => status = changed,
                _ => {}
            }
        }
        Ok(Some(status))
    }
}

/// Whether a VM has memory: it runs, is paused, or ends.
pub fn runs(vm: &RawVm) -> bool {
    ![state::DEFINED, state::ENDED].contains(&vm.state) && vm.holding != [0; 7]
}

/// The VM whose state has changed, where the frame tells that.
pub fn state_event(frame: &Frame) -> Option<VmStatus> {
    let is_state = frame.kind == event::STATE;
    let raw = is_state.then(|| RawVm::read_from_bytes(&frame.payload).ok())??;
    Some(VmStatus::from(&raw))
}

/// A VM's name as it travels.
pub fn vm_name(vm: &str) -> Result<VmName> {
    let name = VmName::new(vm).filter(|_| crate::vmfile::is_name(vm));
    name.ok_or_else(|| {
        let message = format!("'{vm}' cannot be a VM's name");
        Failure::new(code::NO_SUCH_VM as u8, message).help("`underpin list` shows the names")
    })
}

fn accept(payload: &[u8]) -> Result<Reply> {
    let (header, body) = ReplyHeader::read_from_prefix(payload).map_err(|_| garbled())?;
    if header.code == code::OK {
        return Ok(Reply {
            header,
            body: body.to_owned(),
        });
    }
    let exit = u8::try_from(header.code).unwrap_or(exit::FAILED);
    let sentence = String::from_utf8_lossy(body).trim().to_owned();
    let sentence = if sentence.is_empty() {
        format!("refused, code {}", header.code)
    } else {
        sentence
    };
    let failure = Failure::new(exit, sentence);
    Err(match header.code {
        code::NO_SUCH_VM => failure.help("`underpin list` shows the VMs"),
        code::WRONG_STATE => failure.help("`underpin list` shows the VM's state"),
        code::NO_MEMORY => failure.help("end another VM, or give the machine more: sim --memory"),
        code::BUSY => {
            failure.help("a partition that is written serves one VM at a time: end the other")
        }
        _ => failure,
    })
}

fn garbled() -> Failure {
    let message = "the hypervisor's answer makes no sense to this command";
    Failure::new(exit::FAILED, message).help("are EL2's image and this command of one version?")
}

fn lost(error: &io::Error) -> Failure {
    let message = match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset => "the machine is gone".to_owned(),
        _ => format!("the connection to the machine broke: {}", reason(error)),
    };
    Failure::new(exit::MACHINE_DIED, message)
}

#[cfg(test)]
mod tests;
