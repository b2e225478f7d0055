//! The layout of the memory that a host and a kernel's process share: one page about the whole, then lanes. Both sides use this.
//!
//! A lane carries one request at a time. The host writes data and fields, then counts `asked` up; the process answers into the
//! same data and counts `answered` up. Either spins for a moment and then sleeps on the other's word, so that a hop costs two
//! wake-ups at the most and none while both are busy.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{hint, io};

use crate::aside::wait_aside;
use crate::shared_memory::{SharedMemory, give_back, wait, wake};
use crate::walls::Walls;

/// The version of this layout, first in the memory.
pub const LAYOUT: u32 = 0x4b56_0002;
/// Most lanes.
pub const MAX_LANES: usize = 1024;
/// Largest data of a lane in bytes.
pub const MAX_LANE_BYTES: usize = 64 << 20;
/// Smallest data of a lane in bytes: a row of the longest there are, in and out.
pub const MIN_LANE_BYTES: usize = 4 << 20;
/// Data of all lanes together, as long as each has its least. Pages that nobody touched cost nothing.
pub const ALL_LANES_BYTES: usize = 1 << 30;
/// Data of a lane that is kept resident after a load; what lies behind is given back.
pub const KEPT_BYTES: usize = 1 << 20;
/// Largest expert in bytes.
pub const MAX_EXPERT_BYTES: u64 = 2 << 30;
/// Longest report of a failure in bytes.
pub const MAX_REPORT_BYTES: usize = 4 << 10;
/// How long a side watches for the other before it sleeps, unless it knows better.
pub const SPIN: Duration = Duration::from_micros(30);
/// How long the host sleeps before it looks whether its deadline has passed.
const HOST_NAP: Duration = Duration::from_millis(50);
/// How long the process sleeps before it looks again, in case that a wake-up was lost.
const PROCESS_NAP: Duration = Duration::from_secs(60);

const PAGE: usize = 4096;
const FIELDS: usize = 16;
// In the first page.
const AT_LAYOUT: usize = 0;
const AT_LANES: usize = 4;
const AT_READY: usize = 8;
const AT_WALLS: usize = 12;
const AT_LANE_BYTES: usize = 16;
const AT_DATA_LIMIT: usize = 24;
// In a lane; each word that is waited for has a cache line of its own. Who answers writes the progress too.
const AT_ASKED: usize = 0;
const AT_PROCESS_SLEEPS: usize = 64;
const AT_ANSWERED: usize = 128;
const AT_PROGRESS: usize = 132;
const AT_HOST_SLEEPS: usize = 192;
const AT_REQUEST: usize = 256;
const AT_ANSWER: usize = 512;

/// The whole shared memory.
#[derive(Debug)]
pub struct Ring {
    memory: SharedMemory,
    lanes: usize,
    lane_bytes: usize,
}

/// What the host asks. Lengths are bytes of the lane's data, from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// An answer at once, to measure the way.
    Ping,
    /// A new instance under a number that no living one has.
    Instantiate {
        /// Its number.
        instance: u64,
        /// Most linear memory in bytes.
        memory_bytes: u64,
        /// Fuel of a call.
        fuel_per_call: u64,
        /// Wall clock of a call in nanoseconds.
        deadline_nanoseconds: u64,
    },
    /// The next bytes of an expert that is larger than the data of a lane.
    Chunk {
        /// How many.
        length: u64,
    },
    /// An expert: in the data, or in the chunks before.
    Load {
        /// The instance.
        instance: u64,
        /// The expert's number, which no living one of the instance has.
        expert: u64,
        /// Format, rows, columns of gate, up and down.
        shape: [u32; 9],
        /// Bytes of gate, up and down, back to back.
        lengths: [u64; 3],
        /// Whether they came in chunks.
        chunked: bool,
    },
    /// Rows through an expert.
    Forward {
        /// The instance.
        instance: u64,
        /// The expert.
        expert: u64,
        /// Rows.
        count: u32,
        /// Bytes of the rows.
        length: u64,
    },
    /// Rows through several experts, one after the other: a table of jobs and their rows ([`crate::jobs`]).
    Together {
        /// How many jobs.
        jobs: u64,
        /// Bytes of table and rows.
        length: u64,
    },
    /// Frees an expert.
    Unload {
        /// The instance.
        instance: u64,
        /// The expert.
        expert: u64,
    },
    /// Frees an instance with all that it holds.
    Drop {
        /// The instance.
        instance: u64,
    },
}

/// What the process answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// So many f32, little-endian, at the start of the data; of several jobs, right behind their rows.
    Values {
        /// How many.
        count: u64,
    },
    /// The kernel failed; the account is at the start of the data.
    Failed {
        /// Whether the instance is gone.
        fatal: bool,
        /// Bytes of the account.
        length: u64,
        /// Which of several jobs: those before it were done, those behind it are not; 0 where there was one.
        job: u64,
    },
    /// The request breaks the protocol.
    Refused,
}

impl Request {
    /// As numbers.
    pub fn encode(&self) -> [u64; FIELDS] {
        let mut fields = [0; FIELDS];
        let mut put = |values: &[u64]| fields[..values.len()].copy_from_slice(values);
        match *self {
            Request::Ping => put(&[1]),
            Request::Instantiate { instance, memory_bytes, fuel_per_call, deadline_nanoseconds } => {
                put(&[2, instance, memory_bytes, fuel_per_call, deadline_nanoseconds]);
            }
            Request::Chunk { length } => put(&[3, length]),
            Request::Load { instance, expert, shape, lengths, chunked } => {
                put(&[4, instance, expert, u64::from(chunked), lengths[0], lengths[1], lengths[2]]);
                for (field, number) in fields[7..].iter_mut().zip(shape) {
                    *field = u64::from(number);
                }
            }
            Request::Forward { instance, expert, count, length } => {
                put(&[5, instance, expert, u64::from(count), length]);
            }
            Request::Unload { instance, expert } => put(&[6, instance, expert]),
            Request::Drop { instance } => put(&[7, instance]),
            Request::Together { jobs, length } => put(&[8, jobs, length]),
        }
        fields
    }

    /// From such numbers; `None` where they are none.
    pub fn decode(fields: &[u64; FIELDS]) -> Option<Request> {
        let [kind, instance, expert, third, fourth, ..] = *fields;
        Some(match kind {
            1 => Request::Ping,
            2 => Request::Instantiate {
                instance,
                memory_bytes: expert,
                fuel_per_call: third,
                deadline_nanoseconds: fourth,
            },
            3 => Request::Chunk { length: instance },
            4 => {
                let mut shape = [0; 9];
                for (number, field) in shape.iter_mut().zip(&fields[7..]) {
                    *number = u32::try_from(*field).ok()?;
                }
                let chunked = match third {
                    0 => false,
                    1 => true,
                    _ => return None,
                };
                Request::Load { instance, expert, shape, lengths: [fields[4], fields[5], fields[6]], chunked }
            }
            5 => Request::Forward { instance, expert, count: u32::try_from(third).ok()?, length: fourth },
            6 => Request::Unload { instance, expert },
            7 => Request::Drop { instance },
            8 => Request::Together { jobs: instance, length: expert },
            _ => return None,
        })
    }
}

impl Answer {
    fn encode(self) -> [u64; 4] {
        match self {
            Answer::Done => [1, 0, 0, 0],
            Answer::Values { count } => [2, count, 0, 0],
            Answer::Failed { fatal, length, job } => [3, length, u64::from(fatal), job],
            Answer::Refused => [4, 0, 0, 0],
        }
    }

    fn decode([kind, number, flag, job]: [u64; 4]) -> Option<Answer> {
        Some(match kind {
            1 => Answer::Done,
            2 => Answer::Values { count: number },
            3 => Answer::Failed { fatal: flag != 0, length: number, job },
            4 => Answer::Refused,
            _ => return None,
        })
    }
}

impl Ring {
    /// Bytes of data that each of `lanes` lanes gets.
    pub fn lane_bytes_for(lanes: usize) -> usize {
        let share = ALL_LANES_BYTES / lanes.max(1) / PAGE * PAGE;
        share.clamp(MIN_LANE_BYTES, MAX_LANE_BYTES)
    }

    /// Bytes of the whole.
    pub fn length(lanes: usize, lane_bytes: usize) -> usize {
        PAGE + lanes * (PAGE + lane_bytes)
    }

    /// Lays fresh memory out for `lanes` lanes; the process bounds its private memory by `data_limit`, 0 for no bound.
    ///
    /// # Errors
    /// The system's answer.
    pub fn create(
        file: BorrowedFd<'_>,
        lanes: usize,
        lane_bytes: usize,
        data_limit: u64,
    ) -> io::Result<Ring> {
        let memory = SharedMemory::map(file, Self::length(lanes, lane_bytes))?;
        memory.word(AT_LANES).store(lanes as u32, Ordering::Relaxed);
        memory.number(AT_LANE_BYTES).store(lane_bytes as u64, Ordering::Relaxed);
        memory.number(AT_DATA_LIMIT).store(data_limit, Ordering::Relaxed);
        memory.word(AT_LAYOUT).store(LAYOUT, Ordering::Release);
        Ok(Ring { memory, lanes, lane_bytes })
    }

    /// The memory that a host has laid out; for the process.
    ///
    /// # Errors
    /// Another layout, or the system's answer.
    pub fn open(file: BorrowedFd<'_>, file_bytes: usize) -> io::Result<Ring> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "the shared memory is of another version");
        let memory = SharedMemory::map(file, file_bytes)?;
        let lanes = memory.word(AT_LANES).load(Ordering::Relaxed) as usize;
        let lane_bytes = memory.number(AT_LANE_BYTES).load(Ordering::Relaxed) as usize;
        let known = memory.word(AT_LAYOUT).load(Ordering::Acquire) == LAYOUT
            && (1..=MAX_LANES).contains(&lanes)
            && (MIN_LANE_BYTES..=MAX_LANE_BYTES).contains(&lane_bytes)
            && lane_bytes.is_multiple_of(PAGE)
            && Self::length(lanes, lane_bytes) == file_bytes;
        if known { Ok(Ring { memory, lanes, lane_bytes }) } else { Err(wrong()) }
    }

    /// Lanes.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Bytes of a lane's data.
    pub fn lane_bytes(&self) -> usize {
        self.lane_bytes
    }

    /// Bound on the process's private memory, 0 for none.
    pub fn data_limit(&self) -> u64 {
        self.memory.number(AT_DATA_LIMIT).load(Ordering::Relaxed)
    }

    /// The process says that it answers from now on, behind these walls.
    pub fn set_ready(&self, walls: Walls) {
        self.memory.word(AT_WALLS).store(walls.to_word(), Ordering::Relaxed);
        self.memory.word(AT_READY).store(1, Ordering::Release);
        wake(self.memory.word(AT_READY));
    }

    /// The walls, once the process is ready.
    pub fn ready(&self) -> Option<Walls> {
        (self.memory.word(AT_READY).load(Ordering::Acquire) == 1)
            .then(|| Walls::from_word(self.memory.word(AT_WALLS).load(Ordering::Relaxed)))
    }

    /// Waits a moment for [`Ring::set_ready`].
    pub fn wait_ready(&self, limit: Duration) {
        wait(self.memory.word(AT_READY), 0, limit);
    }

    /// Lane `number`.
    ///
    /// # Panics
    /// Where there is none.
    pub fn lane(&self, number: usize) -> Lane<'_> {
        assert!(number < self.lanes, "lane {number} of {}", self.lanes);
        Lane { ring: self, start: PAGE + number * (PAGE + self.lane_bytes) }
    }

    /// Wakes the host in every lane: the process is gone.
    pub fn wake_host(&self) {
        wake(self.memory.word(AT_READY));
        (0..self.lanes).for_each(|lane| wake(self.lane(lane).answered()));
    }
}

/// One lane.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    ring: &'a Ring,
    start: usize,
}

impl<'a> Lane<'a> {
    fn word(&self, at: usize) -> &'a AtomicU32 {
        self.ring.memory.word(self.start + at)
    }

    fn answered(&self) -> &'a AtomicU32 {
        self.word(AT_ANSWERED)
    }

    /// Bytes of its data.
    pub fn bytes(&self) -> usize {
        self.ring.lane_bytes
    }

    /// Host: puts a request, whose data is written already, under the next `number`.
    pub fn ask(&self, request: &Request, number: u32) {
        self.word(AT_PROGRESS).store(0, Ordering::Relaxed);
        for (index, field) in request.encode().into_iter().enumerate() {
            self.ring.memory.number(self.start + AT_REQUEST + 8 * index).store(field, Ordering::Relaxed);
        }
        post(self.word(AT_ASKED), number, self.word(AT_PROCESS_SLEEPS));
    }

    /// Host: waits for the answer `number` as long as `goes_on` says so, without sleep for the time `spin`; `Some(None)` is one that is
    /// none.
    pub fn answer(
        &self,
        number: u32,
        spin: Duration,
        goes_on: impl FnMut() -> bool,
    ) -> Option<Option<Answer>> {
        let sleeps = self.word(AT_HOST_SLEEPS);
        await_number(self.answered(), number, sleeps, [spin, HOST_NAP], goes_on).then(|| {
            let field = |index: usize| {
                self.ring.memory.number(self.start + AT_ANSWER + 8 * index).load(Ordering::Relaxed)
            };
            Answer::decode([field(0), field(1), field(2), field(3)])
        })
    }

    /// Host: how many jobs of the request under way the process says to have done.
    pub fn progress(&self) -> u32 {
        self.word(AT_PROGRESS).load(Ordering::Relaxed)
    }

    /// Process: so many jobs of the request under way are done.
    pub fn set_progress(&self, jobs: u32) {
        self.word(AT_PROGRESS).store(jobs, Ordering::Relaxed);
    }

    /// Process: the request `number`, waited for without end.
    pub fn request(&self, number: u32) -> Option<Request> {
        let sleeps = self.word(AT_PROCESS_SLEEPS);
        await_number(self.word(AT_ASKED), number, sleeps, [SPIN, PROCESS_NAP], || true);
        let mut fields = [0; FIELDS];
        for (index, field) in fields.iter_mut().enumerate() {
            *field = self.ring.memory.number(self.start + AT_REQUEST + 8 * index).load(Ordering::Relaxed);
        }
        Request::decode(&fields)
    }

    /// Process: answers request `number`; the data is written already.
    pub fn reply(&self, answer: Answer, number: u32) {
        for (index, field) in answer.encode().into_iter().enumerate() {
            self.ring.memory.number(self.start + AT_ANSWER + 8 * index).store(field, Ordering::Relaxed);
        }
        post(self.answered(), number, self.word(AT_HOST_SLEEPS));
    }

    /// Copies bytes into the data.
    ///
    /// # Panics
    /// Beyond its end.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.ring.lane_bytes);
        self.ring.memory.write(self.start + PAGE + offset, bytes);
    }

    /// Copies bytes out of the data.
    ///
    /// # Panics
    /// Beyond its end.
    pub fn read(&self, out: &mut [u8]) {
        assert!(out.len() <= self.ring.lane_bytes);
        self.ring.memory.read(self.start + PAGE, out);
    }

    /// Copies floats into the data.
    ///
    /// # Panics
    /// Beyond its end.
    pub fn write_floats(&self, offset: usize, values: &[f32]) {
        assert!(offset + size_of_val(values) <= self.ring.lane_bytes);
        self.ring.memory.write_floats(self.start + PAGE + offset, values);
    }

    /// Copies floats out of the data.
    ///
    /// # Panics
    /// Beyond its end.
    pub fn read_floats(&self, offset: usize, out: &mut [f32]) {
        assert!(offset + size_of_val(out) <= self.ring.lane_bytes);
        self.ring.memory.read_floats(self.start + PAGE + offset, out);
    }

    /// The data itself; `None` beyond its end.
    ///
    /// # Safety
    /// For the process alone, between a request and its answer: the host writes nothing then.
    pub unsafe fn data(&self, length: u64) -> Option<&'a [u8]> {
        let length = usize::try_from(length).ok().filter(|length| *length <= self.ring.lane_bytes)?;
        // SAFETY: inside the lane's data, and the caller promises that the host does not write.
        Some(unsafe { self.ring.memory.bytes(self.start + PAGE, length) })
    }

    /// Gives the data behind the first [`KEPT_BYTES`] up to `used` back to the system.
    pub fn give_back(&self, file: BorrowedFd<'_>, used: usize) {
        let used = used.min(self.ring.lane_bytes).next_multiple_of(PAGE);
        if used > KEPT_BYTES {
            give_back(file, self.start + PAGE + KEPT_BYTES, used - KEPT_BYTES);
        }
    }
}

/// Sets `word` and wakes who sleeps on it. The order of this and of `await_number` is sequential: either the sleeper sees the new
/// number, or this sees that it sleeps.
fn post(word: &AtomicU32, number: u32, sleeps: &AtomicU32) {
    word.store(number, Ordering::SeqCst);
    if sleeps.load(Ordering::SeqCst) != 0 {
        wake(word);
    }
}

/// Whether `word` became `number` before `goes_on` said no; asked after every nap and every wake-up, of which there are none for the
/// time `spin`.
fn await_number(
    word: &AtomicU32,
    number: u32,
    sleeps: &AtomicU32,
    [spin, nap]: [Duration; 2],
    mut goes_on: impl FnMut() -> bool,
) -> bool {
    let begun = Instant::now();
    loop {
        for _ in 0..64 {
            if word.load(Ordering::Acquire) == number {
                return true;
            }
            hint::spin_loop();
        }
        let watched = begun.elapsed();
        if watched >= spin {
            break;
        }
        // Whoever is to answer, or brings what is asked next, may have to run on this very processor.
        if watched >= SPIN {
            std::thread::yield_now();
        }
    }
    let mut came = false;
    wait_aside(&mut || came = sleep_until(word, number, sleeps, nap, &mut goes_on));
    came
}

/// The part of [`await_number`] that sleeps.
fn sleep_until(
    word: &AtomicU32,
    number: u32,
    sleeps: &AtomicU32,
    nap: Duration,
    goes_on: &mut impl FnMut() -> bool,
) -> bool {
    loop {
        sleeps.store(1, Ordering::SeqCst);
        let found = word.load(Ordering::SeqCst);
        if found != number {
            wait(word, found, nap);
        }
        sleeps.store(0, Ordering::SeqCst);
        if word.load(Ordering::Acquire) == number {
            return true;
        }
        if !goes_on() {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::aside::waiting_aside;
    use crate::shared_memory::memory_file;

    fn requests() -> Vec<Request> {
        let (instance, expert) = (u64::MAX, 3);
        vec![
            Request::Ping,
            Request::Instantiate { instance, memory_bytes: 1, fuel_per_call: 2, deadline_nanoseconds: 3 },
            Request::Chunk { length: 9 },
            Request::Load {
                instance,
                expert,
                shape: [1, 2, 3, 4, 5, 6, 7, 8, u32::MAX],
                lengths: [10, 11, 12],
                chunked: true,
            },
            Request::Forward { instance, expert, count: u32::MAX, length: 5 },
            Request::Unload { instance, expert },
            Request::Drop { instance },
            Request::Together { jobs: 5, length: u64::MAX },
        ]
    }

    #[test]
    fn what_is_asked_arrives_and_what_is_nonsense_is_none() {
        for request in requests() {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        assert_eq!(Request::decode(&[0; FIELDS]), None);
        assert_eq!(Request::decode(&[u64::MAX; FIELDS]), None);
        let mut load = requests()[3].encode();
        load[3] = 2;
        assert_eq!(Request::decode(&load), None);
        load = requests()[3].encode();
        load[8] = 1 << 32;
        assert_eq!(Request::decode(&load), None);
        for answer in [
            Answer::Done,
            Answer::Refused,
            Answer::Values { count: 7 },
            Answer::Failed { fatal: true, length: u64::MAX, job: 0 },
            Answer::Failed { fatal: false, length: 1, job: 255 },
        ] {
            assert_eq!(Answer::decode(answer.encode()), Some(answer));
        }
        assert_eq!(Answer::decode([9, 0, 0, 0]), None);
    }

    #[test]
    fn two_sides_meet_in_every_lane() {
        let lanes = 3;
        let length = Ring::length(lanes, MIN_LANE_BYTES);
        let file = memory_file(length).unwrap();
        let host = Ring::create(file.as_fd(), lanes, MIN_LANE_BYTES, 77).unwrap();
        let process = Ring::open(file.as_fd(), length).unwrap();
        assert_eq!(
            (process.lanes(), process.lane_bytes(), process.data_limit()),
            (lanes, MIN_LANE_BYTES, 77)
        );
        std::thread::scope(|scope| {
            for number in 0..lanes {
                let (host, process) = (&host, &process);
                scope.spawn(move || {
                    let lane = process.lane(number);
                    for turn in 1..=200u32 {
                        let request = lane.request(turn);
                        assert_eq!(request, Some(Request::Chunk { length: u64::from(turn) }));
                        lane.write_floats(4, &[turn as f32]);
                        lane.set_progress(turn);
                        lane.reply(Answer::Values { count: 1 }, turn);
                        if turn % 50 == 0 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                });
                scope.spawn(move || {
                    let lane = host.lane(number);
                    for turn in 1..=200u32 {
                        lane.ask(&Request::Chunk { length: u64::from(turn) }, turn);
                        assert_eq!(lane.answer(turn, SPIN, || true), Some(Some(Answer::Values { count: 1 })));
                        assert_eq!(lane.progress(), turn);
                        let mut value = [0.0];
                        lane.read_floats(4, &mut value);
                        assert_eq!(value, [turn as f32]);
                    }
                });
            }
        });
        assert_eq!(host.lane(0).answer(201, SPIN, || false), None, "nobody answers what was not asked");
    }

    #[test]
    fn a_wait_is_handed_aside_where_it_sleeps_and_only_there() {
        static WAITS: AtomicU32 = AtomicU32::new(0);
        fn aside(wait: &mut dyn FnMut()) {
            WAITS.fetch_add(1, Ordering::Relaxed);
            wait();
        }
        let length = Ring::length(1, MIN_LANE_BYTES);
        let file = memory_file(length).unwrap();
        let ring = Ring::create(file.as_fd(), 1, MIN_LANE_BYTES, 0).unwrap();
        let lane = ring.lane(0);
        assert_eq!(waiting_aside(aside, || lane.answer(1, SPIN, || false)), None);
        assert_eq!(WAITS.load(Ordering::Relaxed), 1);
        lane.reply(Answer::Done, 1);
        assert_eq!(waiting_aside(aside, || lane.answer(1, SPIN, || true)), Some(Some(Answer::Done)));
        assert_eq!(WAITS.load(Ordering::Relaxed), 1, "it was there");
        assert_eq!(lane.answer(2, Duration::ZERO, || false), None);
        assert_eq!(WAITS.load(Ordering::Relaxed), 1, "no longer");
    }

    #[test]
    fn another_layout_is_refused() {
        let length = Ring::length(1, MIN_LANE_BYTES);
        let file = memory_file(length).unwrap();
        assert!(Ring::open(file.as_fd(), length).is_err(), "nothing is laid out");
        Ring::create(file.as_fd(), 1, MIN_LANE_BYTES, 0).unwrap();
        Ring::open(file.as_fd(), length).unwrap();
        let memory = SharedMemory::map(file.as_fd(), length).unwrap();
        for lanes in [0, 2, u32::MAX] {
            memory.word(AT_LANES).store(lanes, Ordering::Relaxed);
            assert!(Ring::open(file.as_fd(), length).is_err(), "{lanes}");
        }
    }
}
