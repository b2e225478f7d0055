//! A lane: the kernel instances that hold one share of the experts, used by one thread at a time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use kvasir_kernel::{KernelError, Together};
use kvasir_model::{ExpertIndex, LayerIndex};
use kvasir_numerics::{Matrix, RowFormat, Swiglu};
use kvasir_sandbox::{ExpertShape, KernelLimits, MatrixShape, WeightFormat};

use crate::error::RunnerError;
use crate::evaluator::{Evaluator, EvaluatorError, Handle, Instance};
use crate::request::ExpertRows;
use crate::runner::ExpertSource;

/// Share of an instance's memory that is kept free of experts for rows, scratch and the allocator: a quarter, but no
/// more than this many bytes.
const MAX_RESERVE_BYTES: u64 = 128 << 20;
/// One part in so many of the rest is left for a layout of the kernel's own, which may be that much larger than the bytes given.
const LAYOUT_SHARE: u64 = 16;

/// What all lanes of a runner share.
pub(crate) struct Shared {
    pub kernel: Evaluator,
    pub limits: KernelLimits,
    /// Most expert bytes in all lanes.
    pub held_limit: u64,
    /// Most expert bytes that one lane may hold by reading from a source.
    pub lane_limit: u64,
    /// Expert bytes in all lanes now.
    pub held_bytes: AtomicU64,
    /// Instances lost to a trap so far.
    pub failures: AtomicU64,
}

/// The rows of a call, checked: whole rows of `hidden` values.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub layer: LayerIndex,
    pub format: RowFormat,
    pub bytes: &'a [u8],
    pub row_bytes: usize,
    pub hidden: usize,
}

#[derive(Default)]
pub(crate) struct Lane {
    /// Its number within the runner.
    number: usize,
    instances: Vec<Option<Room>>,
    experts: HashMap<(u16, u16), Held>,
    bytes: u64,
    clock: u64,
    gathered: Vec<u8>,
}

/// An instance and how many expert bytes it holds.
struct Room {
    instance: Instance,
    bytes: u64,
}

/// Where an expert is in a kernel's process.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    room: usize,
    pub expert: u64,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Most rows that it may be asked for at once.
    pub at_once: usize,
}

struct Held {
    room: usize,
    handle: Handle,
    bytes: u64,
    hidden: usize,
    row_format: RowFormat,
    used: u64,
}

impl Lane {
    pub fn new(number: usize) -> Self {
        Lane { number, ..Lane::default() }
    }

    pub fn holds(&mut self, shared: &Shared, layer: LayerIndex, expert: ExpertIndex) -> bool {
        self.forget_the_lost(shared);
        self.experts.contains_key(&(layer.0, expert.0))
    }

    /// Computes the rows of one request into `out` (its rows x hidden), reading the expert from `source` if need be.
    pub fn evaluate(
        &mut self,
        shared: &Shared,
        source: Option<&dyn ExpertSource>,
        rows: Rows<'_>,
        request: &ExpertRows,
        out: &mut [f32],
    ) -> Result<(), RunnerError> {
        let (layer, expert) = (rows.layer, request.expert);
        if !self.holds(shared, layer, expert) {
            let source = source.ok_or(RunnerError::NotHeld { layer, expert })?;
            self.read(shared, source, layer, expert)?;
        }
        self.clock += 1;
        let clock = self.clock;
        let held =
            self.experts.get_mut(&(layer.0, expert.0)).ok_or(RunnerError::NotHeld { layer, expert })?;
        held.used = clock;
        if held.row_format != rows.format {
            let (found, expected) = (rows.format, held.row_format);
            return Err(RunnerError::WrongRowFormat { layer, expert, found, expected });
        }
        if held.hidden != rows.hidden {
            let (found, expected) = (rows.hidden, held.hidden);
            return Err(RunnerError::WrongHidden { layer, expert, found, expected });
        }
        let Some(room) = self.instances[held.room].as_mut() else {
            return Err(RunnerError::NotHeld { layer, expert });
        };
        let at_once = shared.limits.grant(&shared.kernel.request()).rows_per_call.max(1) as usize;
        for (rows_now, out) in request.rows.chunks(at_once).zip(out.chunks_mut(at_once * rows.hidden)) {
            let bytes = select(rows, rows_now, &mut self.gathered);
            let answered = room.instance.forward_into(&held.handle, bytes, rows_now.len() as u32, out);
            if let Err(error) = answered {
                return Err(self.failed(shared, layer, expert, error));
            }
        }
        Ok(())
    }

    /// Where the experts of `requests` are in a kernel's process, if all of them are there and take rows such as these; they count as
    /// used then. Nothing where one is not, or would have to be read first.
    pub fn seats<'r>(
        &mut self,
        shared: &Shared,
        rows: Rows<'_>,
        requests: impl Iterator<Item = &'r ExpertRows>,
    ) -> Option<Vec<Seat>> {
        self.forget_the_lost(shared);
        let granted = shared.limits.grant(&shared.kernel.request()).rows_per_call.max(1) as usize;
        let at_once = granted.min(Together::most_rows(rows.row_bytes, rows.hidden));
        let mut seats = Vec::new();
        for request in requests {
            let held = self.experts.get_mut(&(rows.layer.0, request.expert.0))?;
            if held.row_format != rows.format || held.hidden != rows.hidden || at_once == 0 {
                return None;
            }
            self.clock += 1;
            held.used = self.clock;
            seats.push(Seat { room: held.room, expert: held.handle.apart()?, bytes: held.bytes, at_once });
        }
        Some(seats)
    }

    /// The instance of a seat, unless it is lost.
    pub fn instance(&self, seat: Seat) -> Option<&kvasir_kernel::Instance> {
        self.instances.get(seat.room)?.as_ref()?.instance.apart()
    }

    /// A request for several experts stopped at this one, or went with its process.
    pub fn stopped(
        &mut self,
        shared: &Shared,
        seat: Seat,
        (layer, expert): (LayerIndex, ExpertIndex),
        error: KernelError,
    ) -> RunnerError {
        if let Some(Some(room)) = self.instances.get_mut(seat.room) {
            room.instance.stopped(&error);
        }
        self.failed(shared, layer, expert, error.into())
    }

    /// Loads an expert that the caller places; never makes room.
    pub fn load(
        &mut self,
        shared: &Shared,
        layer: LayerIndex,
        expert: ExpertIndex,
        weights: &Swiglu<'_>,
    ) -> Result<(), RunnerError> {
        if self.holds(shared, layer, expert) {
            return Err(RunnerError::AlreadyHeld { layer, expert });
        }
        let bytes = stored_bytes(weights);
        let before = shared.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > shared.held_limit {
            shared.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(RunnerError::NoRoom { layer, expert, bytes, held: before, limit: shared.held_limit });
        }
        let placed = self.place(shared, layer, expert, weights);
        if placed.is_err() {
            shared.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        placed
    }

    pub fn unload(&mut self, shared: &Shared, layer: LayerIndex, expert: ExpertIndex) {
        let Some(held) = self.experts.remove(&(layer.0, expert.0)) else { return };
        self.bytes -= held.bytes;
        shared.held_bytes.fetch_sub(held.bytes, Ordering::Relaxed);
        let Some(room) = self.instances[held.room].as_mut() else { return };
        room.bytes -= held.bytes;
        if let Err(error) = room.instance.unload(held.handle) {
            // A kernel that fails even at this is not used again.
            self.lose(shared, held.room);
            self.failed(shared, layer, expert, error);
        }
    }

    /// Forgets everything: after a panic nothing here is known to be whole.
    pub fn reset(&mut self, shared: &Shared) {
        shared.held_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        *self = Lane::new(self.number);
    }

    /// Reads an expert from its source; the experts unused for longest make room for it.
    fn read(
        &mut self,
        shared: &Shared,
        source: &dyn ExpertSource,
        layer: LayerIndex,
        expert: ExpertIndex,
    ) -> Result<(), RunnerError> {
        let mut placed = Ok(());
        let mut take = |weights: &Swiglu<'_>| {
            let bytes = stored_bytes(weights);
            while self.bytes.saturating_add(bytes) > shared.lane_limit {
                let oldest = self.experts.iter().min_by_key(|(_, held)| held.used).map(|(&key, _)| key);
                let Some((old_layer, old_expert)) = oldest else {
                    let (held, limit) = (0, shared.lane_limit);
                    placed = Err(RunnerError::NoRoom { layer, expert, bytes, held, limit });
                    return;
                };
                self.unload(shared, LayerIndex(old_layer), ExpertIndex(old_expert));
            }
            placed = self.place(shared, layer, expert, weights);
            if placed.is_ok() {
                shared.held_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
        };
        let read = source.expert(layer, expert, &mut take);
        read.map_err(|source| RunnerError::Source { layer, expert, source })?;
        placed
    }

    /// Copies an expert into the first instance with room, or into a new one.
    fn place(
        &mut self,
        shared: &Shared,
        layer: LayerIndex,
        expert: ExpertIndex,
        weights: &Swiglu<'_>,
    ) -> Result<(), RunnerError> {
        let shape = shape(weights).ok_or_else(|| RunnerError::Malformed {
            layer,
            what: format!("expert {} is in a format that the kernel contract cannot name", expert.0),
        })?;
        let bytes = stored_bytes(weights);
        let memory = shared.limits.grant(&shared.kernel.request()).memory_bytes;
        let budget = memory - (memory / 4).min(MAX_RESERVE_BYTES);
        let budget = budget - budget / LAYOUT_SHARE;
        let fits = |room: &Option<Room>| {
            room.as_ref().is_some_and(|room| room.bytes.saturating_add(bytes) <= budget)
        };
        let index = match self.instances.iter().position(fits) {
            Some(index) => index,
            None => {
                let instance = shared
                    .kernel
                    .instantiate(self.number, shared.limits)
                    .map_err(|error| error.of(layer, expert))?;
                let fresh = Some(Room { instance, bytes: 0 });
                match self.instances.iter().position(Option::is_none) {
                    Some(index) => {
                        self.instances[index] = fresh;
                        index
                    }
                    None => {
                        self.instances.push(fresh);
                        self.instances.len() - 1
                    }
                }
            }
        };
        let Some(room) = self.instances[index].as_mut() else {
            return Err(RunnerError::NotHeld { layer, expert });
        };
        let (gate, up, down) = (weights.gate(), weights.up(), weights.down());
        match room.instance.load(shape, gate.bytes(), up.bytes(), down.bytes()) {
            Ok(handle) => {
                room.bytes += bytes;
                self.bytes += bytes;
                let held = Held {
                    room: index,
                    handle,
                    bytes,
                    hidden: gate.columns(),
                    row_format: gate.row_format(),
                    used: self.clock,
                };
                self.experts.insert((layer.0, expert.0), held);
                Ok(())
            }
            Err(error) => Err(self.failed(shared, layer, expert, error)),
        }
    }

    /// After a failure: ends the instances that it took, and says what happened to the expert.
    fn failed(
        &mut self,
        shared: &Shared,
        layer: LayerIndex,
        expert: ExpertIndex,
        error: EvaluatorError,
    ) -> RunnerError {
        tracing::debug!(layer = layer.0, expert = expert.0, %error, "a kernel failed");
        self.forget_the_lost(shared);
        error.of(layer, expert)
    }

    /// Ends the instances that failed or went with their process, and forgets their experts; they are loaded again when asked for.
    fn forget_the_lost(&mut self, shared: &Shared) {
        for index in 0..self.instances.len() {
            if self.instances[index].as_ref().is_some_and(|room| room.instance.is_poisoned()) {
                self.lose(shared, index);
            }
        }
    }

    fn lose(&mut self, shared: &Shared, lost: usize) {
        self.instances[lost] = None;
        let before = self.experts.len();
        let mut freed = 0;
        self.experts.retain(|_, held| {
            let stays = held.room != lost;
            freed += if stays { 0 } else { held.bytes };
            stays
        });
        self.bytes -= freed;
        shared.held_bytes.fetch_sub(freed, Ordering::Relaxed);
        shared.failures.fetch_add(1, Ordering::Relaxed);
        let experts_lost = before - self.experts.len();
        tracing::warn!(lane = self.number, experts_lost, "a kernel instance failed and was ended");
    }
}

/// The chosen rows back to back: a part of the call's own bytes where they stand in order, else gathered.
fn select<'a>(rows: Rows<'a>, chosen: &[u32], gathered: &'a mut Vec<u8>) -> &'a [u8] {
    let at = |row: u32| &rows.bytes[row as usize * rows.row_bytes..][..rows.row_bytes];
    let in_order = chosen.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]));
    match chosen.first() {
        Some(&first) if in_order => {
            &rows.bytes[first as usize * rows.row_bytes..][..chosen.len() * rows.row_bytes]
        }
        _ => {
            gathered.clear();
            chosen.iter().for_each(|&row| gathered.extend_from_slice(at(row)));
            gathered
        }
    }
}

pub(crate) fn stored_bytes(weights: &Swiglu<'_>) -> u64 {
    [weights.gate(), weights.up(), weights.down()].iter().map(|matrix| matrix.bytes().len() as u64).sum()
}

pub(crate) fn shape(weights: &Swiglu<'_>) -> Option<ExpertShape> {
    let matrix = |matrix: Matrix<'_>| {
        Some(MatrixShape {
            format: WeightFormat::from_gguf(matrix.format().number())?,
            rows: u32::try_from(matrix.rows()).ok()?,
            columns: u32::try_from(matrix.columns()).ok()?,
        })
    };
    Some(ExpertShape {
        gate: matrix(weights.gate())?,
        up: matrix(weights.up())?,
        down: matrix(weights.down())?,
    })
}
