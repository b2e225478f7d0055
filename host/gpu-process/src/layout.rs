//! How weights and rows lie in the device's memory: the part of the shader's contract that is about bytes. See `docs/kernel.md`.

use kvasir_gpu::message::Rows;

/// Matrix rows whose words lie side by side.
pub const GROUP: u32 = 32;
/// A matrix row is padded with zeros to a multiple of this many words.
const ROW_WORDS: u32 = 8;
/// Values of an f32 row are padded with zeros to a multiple of this.
const FLOATS: u32 = 16;
/// Values of an f32 row that share a word which says whether one of them is no number.
const FAULT_VALUES: u32 = 256;

/// Words of a matrix row of `bytes` bytes, padding included.
pub fn weight_words(bytes: u32) -> u32 {
    bytes.div_ceil(4).next_multiple_of(ROW_WORDS)
}

/// Groups of [`GROUP`] matrix rows of `row_bytes` bytes each, from `rows`; the last may be short. Word w of row r of a group lies
/// at w * 32 + r.
pub fn interleave(rows: &[u8], row_bytes: usize, out: &mut Vec<u32>) {
    let words = weight_words(row_bytes as u32) as usize;
    for group in rows.chunks(row_bytes * GROUP as usize) {
        let start = out.len();
        out.resize(start + words * GROUP as usize, 0);
        let out = &mut out[start..];
        for (row, bytes) in group.chunks_exact(row_bytes).enumerate() {
            let (whole, rest) = bytes.as_chunks::<4>();
            let mut column = out[row..].iter_mut().step_by(GROUP as usize);
            for (word, out) in whole.iter().zip(&mut column) {
                *out = u32::from_le_bytes(*word);
            }
            if !rest.is_empty()
                && let Some(out) = column.next()
            {
                let mut word = [0; 4];
                word[..rest.len()].copy_from_slice(rest);
                *out = u32::from_le_bytes(word);
            }
        }
    }
}

/// Words between rows of `columns` values.
pub fn row_words(format: Rows, columns: u32) -> u32 {
    let words = match format {
        Rows::F32 => columns.next_multiple_of(FLOATS) + columns.div_ceil(FAULT_VALUES),
        Rows::Q8 | Rows::Q8K => columns / 4 + columns / 32 + columns / format.block_len() as u32,
    };
    words.next_multiple_of(4)
}

/// One row as it came over the wire, appended: values, then (quantised rows) the sums of 32 values each and the scales, or (f32
/// rows) the fault words.
pub fn lay_row(format: Rows, columns: u32, row: &[u8], out: &mut Vec<u32>) {
    let start = out.len();
    let length = row_words(format, columns) as usize;
    if format == Rows::F32 {
        out.extend(row.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)));
        out.resize(start + length, 0);
        return;
    }
    out.resize(start + length, 0);
    let out = &mut out[start..];
    let (values, rest) = out.split_at_mut(columns as usize / 4);
    let (sums, scales) = rest.split_at_mut(columns as usize / 32);
    let block_len = format.block_len();
    for (index, block) in row.chunks_exact(4 + block_len).enumerate() {
        let (scale, quants) = block.split_at(4);
        scales[index] = u32::from_le_bytes(scale.try_into().unwrap_or_default());
        for (word, quants) in values[index * block_len / 4..].iter_mut().zip(quants.as_chunks().0) {
            *word = u32::from_le_bytes(*quants);
        }
        for (sum, quants) in sums[index * block_len / 32..].iter_mut().zip(quants.as_chunks::<32>().0) {
            *sum = quants.iter().map(|&quant| i32::from(quant as i8)).sum::<i32>() as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_32_rows_lie_side_by_side_and_the_rest_is_zero() {
        let row_bytes = 34;
        let rows: Vec<u8> = (0..35 * row_bytes).map(|byte| (byte % 251 + 1) as u8).collect();
        let mut out = Vec::new();
        interleave(&rows, row_bytes, &mut out);
        let words = weight_words(34);
        assert_eq!((words, out.len()), (16, 2 * 16 * 32));
        for row in 0..64 {
            for word in 0..words as usize {
                let found = out[row / 32 * 16 * 32 + word * 32 + row % 32].to_le_bytes();
                for (byte, found) in found.into_iter().enumerate() {
                    let at = word * 4 + byte;
                    let due = if row < 35 && at < row_bytes { rows[row * row_bytes + at] } else { 0 };
                    assert_eq!(found, due);
                }
            }
        }
    }

    #[test]
    fn a_row_is_values_sums_and_scales() {
        let mut row = 1.5f32.to_le_bytes().to_vec();
        row.extend((0..32).map(|value| (value - 20) as i8 as u8));
        row.extend(2.5f32.to_le_bytes());
        row.extend([3; 32]);
        let mut out = vec![9];
        lay_row(Rows::Q8, 64, &row, &mut out);
        assert_eq!(out.len(), 1 + row_words(Rows::Q8, 64) as usize);
        assert_eq!(out[1], u32::from_le_bytes([-20i8 as u8, -19i8 as u8, -18i8 as u8, -17i8 as u8]));
        assert_eq!(out[17..19], [(-20 * 32 + 31 * 16) as u32, 96]);
        assert_eq!(out[19..21], [1.5f32.to_bits(), 2.5f32.to_bits()]);
        let mut out = Vec::new();
        lay_row(Rows::F32, 3, &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0], &mut out);
        assert_eq!(out[..4], [1, 2, 3, 0]);
        assert_eq!(out.len(), 20);
    }
}
