//! `kvasir:expert/kernel@0.1.0` as a component's calling convention (the canonical ABI), written out: the contract is small
//! and frozen. A new version of the contract is a new file like this one; nothing here needs a change for other arithmetic.
//!
//! Lists come in memory that the host asked `cabi_realloc` for and are ours from then on. An answer of more than one word lies
//! in memory whose address is returned, and is ours again when the host calls the `cabi_post_` function of that name.

use std::alloc::{Layout, alloc, handle_alloc_error, realloc};

use crate::Expert;

/// Why there is no answer. The order is the contract's.
pub enum Fault {
    /// No arithmetic for such experts; the sentence is for people.
    Unsupported(&'static str),
    MalformedWeights,
    MalformedRows,
    NotFinite,
}

/// The contract's `matrix`; `format` counts the contract's enumeration.
#[derive(Clone, Copy)]
pub struct MatrixShape {
    pub format: u32,
    pub rows: u32,
    pub columns: u32,
}

#[link(wasm_import_module = "[export]kvasir:expert/kernel@0.1.0")]
unsafe extern "C" {
    /// The host's handle for an expert that we know by its address.
    #[link_name = "[resource-new]expert"]
    fn new_handle(expert: *mut u8) -> u32;
}

/// `result<handle or list, fault>` in memory: number of the case, then its payload.
type Answer = [u32; 4];

#[unsafe(export_name = "kvasir:expert/kernel@0.1.0#[static]expert.load")]
#[allow(clippy::too_many_arguments, reason = "the convention takes records apart")]
unsafe extern "C" fn load(
    gate_format: u32,
    gate_rows: u32,
    gate_columns: u32,
    up_format: u32,
    up_rows: u32,
    up_columns: u32,
    down_format: u32,
    down_rows: u32,
    down_columns: u32,
    gate: *mut u8,
    gate_len: usize,
    up: *mut u8,
    up_len: usize,
    down: *mut u8,
    down_len: usize,
) -> *mut Answer {
    let shapes = [
        MatrixShape { format: gate_format, rows: gate_rows, columns: gate_columns },
        MatrixShape { format: up_format, rows: up_rows, columns: up_columns },
        MatrixShape { format: down_format, rows: down_rows, columns: down_columns },
    ];
    // SAFETY: the host allocated each list by `cabi_realloc` with alignment 1 and gives it to us.
    let bytes = [(gate, gate_len), (up, up_len), (down, down_len)].map(|(at, len)| unsafe { list(at, len) });
    answer(match Expert::load(shapes, bytes) {
        // SAFETY: the address is that of a box which only `drop_expert` frees.
        Ok(expert) => [0, unsafe { new_handle(Box::into_raw(Box::new(expert)).cast()) }, 0, 0],
        Err(fault) => refusal(&fault),
    })
}

#[unsafe(export_name = "kvasir:expert/kernel@0.1.0#[method]expert.forward")]
unsafe extern "C" fn forward(expert: *const Expert, rows: *mut u8, rows_len: usize, count: usize) -> *mut Answer {
    // SAFETY: `expert` is what `new_handle` was given, not yet dropped; the list is ours as in `load`.
    let (expert, rows) = unsafe { (&*expert, list(rows, rows_len)) };
    answer(match expert.forward(&rows, count) {
        Ok(values) => {
            let values = Box::leak(values.into_boxed_slice());
            [0, values.as_mut_ptr() as u32, values.len() as u32, 0]
        }
        Err(fault) => refusal(&fault),
    })
}

#[unsafe(export_name = "cabi_post_kvasir:expert/kernel@0.1.0#[static]expert.load")]
unsafe extern "C" fn after_load(answer: *mut Answer) {
    // SAFETY: `answer` made it. The sentence of a fault is static.
    drop(unsafe { Box::from_raw(answer) });
}

#[unsafe(export_name = "cabi_post_kvasir:expert/kernel@0.1.0#[method]expert.forward")]
unsafe extern "C" fn after_forward(answer: *mut Answer) {
    // SAFETY: `answer` made it, and `forward` leaked the values.
    unsafe {
        let [case, values, len, _] = *Box::from_raw(answer);
        if case == 0 {
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(values as *mut f32, len as usize)));
        }
    }
}

#[unsafe(export_name = "kvasir:expert/kernel@0.1.0#[dtor]expert")]
unsafe extern "C" fn drop_expert(expert: *mut Expert) {
    // SAFETY: the host drops each handle once.
    drop(unsafe { Box::from_raw(expert) });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cabi_realloc(old: *mut u8, old_len: usize, align: usize, len: usize) -> *mut u8 {
    if len == 0 {
        return align as *mut u8;
    }
    // SAFETY: the convention's own promises: `align` is a power of two, `old` came from here with `old_len`.
    unsafe {
        let layout = Layout::from_size_align_unchecked(len, align);
        let new = match old_len {
            0 => alloc(layout),
            _ => realloc(old, Layout::from_size_align_unchecked(old_len, align), len),
        };
        if new.is_null() {
            handle_alloc_error(layout)
        }
        new
    }
}

fn answer(words: Answer) -> *mut Answer {
    Box::into_raw(Box::new(words))
}

fn refusal(fault: &Fault) -> Answer {
    match fault {
        Fault::Unsupported(text) => [1, 0, text.as_ptr() as u32, text.len() as u32],
        Fault::MalformedWeights => [1, 1, 0, 0],
        Fault::MalformedRows => [1, 2, 0, 0],
        Fault::NotFinite => [1, 3, 0, 0],
    }
}

unsafe fn list(at: *mut u8, len: usize) -> Vec<u8> {
    // SAFETY: the caller's.
    unsafe { Vec::from_raw_parts(at, len, len) }
}
