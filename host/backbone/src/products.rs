//! Products of quantised rows with matrices, their outputs shared out over threads.

use std::ops::Range;

use kvasir_numerics::{InstructionSet, Matrix, product};

use crate::parallel::{Cost, pieces, share, stretch};

/// Outputs per piece come in multiples of this, so that kernels which take several matrix rows at once keep doing so.
const OUTPUTS_TOGETHER: usize = 4;

/// Rows and outputs of a tile that is transposed at once.
const TILE: usize = 8;

/// Cost of transposing one value, in multiply-adds.
const TURN_COST: usize = 16;

/// One product to be done: every row of `rows` with every row of `matrix`.
pub(crate) struct Product<'a> {
    matrix: Matrix<'a>,
    /// First output of `out`.
    first: usize,
    rows: &'a [u8],
    count: usize,
    /// Output-major: outputs x count.
    out: &'a mut [f32],
}

impl<'a> Product<'a> {
    /// A whole product. `rows` holds `count` rows in the matrix's row format; `out` is cleared and made
    /// `matrix.rows() * count` long, output-major: `out[output * count + row]`.
    pub(crate) fn new(
        matrix: Matrix<'a>,
        rows: &'a [u8],
        count: usize,
        out: &'a mut Vec<f32>,
    ) -> Product<'a> {
        out.resize(matrix.rows() * count, 0.0);
        Product { matrix, first: 0, rows, count, out }
    }

    fn outputs(&self) -> usize {
        self.out.len() / self.count
    }

    /// Cuts off the first `outputs` outputs.
    fn split_off(self, outputs: usize) -> (Product<'a>, Product<'a>) {
        let Product { matrix, first, rows, count, out } = self;
        let (left, right) = out.split_at_mut(outputs * count);
        (
            Product { matrix, first, rows, count, out: left },
            Product { matrix, first: first + outputs, rows, count, out: right },
        )
    }

    fn run(&mut self, instructions: InstructionSet) {
        let outputs = self.first..self.first + self.outputs();
        product(instructions, self.matrix, outputs, self.rows, self.count, self.out);
    }
}

impl Cost for Product<'_> {
    fn cost(&self) -> usize {
        self.out.len() * self.matrix.columns()
    }
}

/// Does all products, as one fork where they are worth one. No number of rows may be zero.
pub(crate) fn compute<const N: usize>(instructions: InstructionSet, products: [Product<'_>; N]) {
    let total: usize = products.iter().map(Cost::cost).sum();
    let pieces = pieces(total);
    if pieces == 1 {
        for mut product in products {
            product.run(instructions);
        }
        return;
    }
    let piece_cost = total.div_ceil(pieces);
    let mut tasks = Vec::with_capacity(pieces + N);
    for product in products {
        let cost_per_output = product.count * product.matrix.columns();
        let outputs = (piece_cost / cost_per_output).next_multiple_of(OUTPUTS_TOGETHER);
        let mut rest = product;
        while rest.outputs() > outputs {
            let (piece, others) = rest.split_off(outputs);
            tasks.push(piece);
            rest = others;
        }
        tasks.push(rest);
    }
    share(&mut tasks, &|task| task.run(instructions));
}

/// Turns the rows `rows` of an output-major product (outputs x `count`) into row-major rows (rows x outputs).
pub(crate) fn transpose_rows(product: &[f32], count: usize, rows: Range<usize>, out: &mut [f32]) {
    if count == 1 {
        out.copy_from_slice(product);
    } else {
        turn(product, count, rows, out, |_, value| value);
    }
}

/// Adds an output-major product to row-major rows: `rows[row][output] += product[output][row]`.
pub(crate) fn add_product(product: &[f32], count: usize, rows: &mut [f32]) {
    if count == 1 {
        rows.iter_mut().zip(product).for_each(|(value, add)| *value += add);
    } else {
        turn(product, count, 0..count, rows, |value, add| value + add);
    }
}

/// Sets every element of `out` to `join(element, product's)`.
fn turn(
    product: &[f32],
    count: usize,
    rows: Range<usize>,
    out: &mut [f32],
    join: impl Fn(f32, f32) -> f32 + Copy + Sync,
) {
    let outputs = product.len() / count;
    let stretch = stretch(rows.len(), outputs * TURN_COST).next_multiple_of(TILE);
    let mut tasks: Vec<TurnTask<'_>> = out
        .chunks_mut(stretch * outputs)
        .enumerate()
        .map(|(at, out)| TurnTask { first: rows.start + at * stretch, out })
        .collect();
    share(&mut tasks, &|task| turn_rows(product, count, task, join));
}

/// In square tiles: both sides stay within few cache lines, and a tile is read and written in whole vectors.
fn turn_rows(product: &[f32], count: usize, task: &mut TurnTask<'_>, join: impl Fn(f32, f32) -> f32 + Copy) {
    let outputs = product.len() / count;
    let TurnTask { first, out } = task;
    let rows = *first..*first + out.len() / outputs;
    for first_row in (0..rows.len()).step_by(TILE) {
        let tile_rows = TILE.min(rows.len() - first_row);
        for first_output in (0..outputs).step_by(TILE) {
            let tile_outputs = TILE.min(outputs - first_output);
            let from = |output: usize| (first_output + output) * count + rows.start + first_row;
            let to = |row: usize| (first_row + row) * outputs + first_output;
            if tile_rows < TILE || tile_outputs < TILE {
                for row in 0..tile_rows {
                    for output in 0..tile_outputs {
                        let value = &mut out[to(row) + output];
                        *value = join(*value, product[from(output) + row]);
                    }
                }
                continue;
            }
            let mut tile = [[0.0; TILE]; TILE];
            for (output, values) in tile.iter_mut().enumerate() {
                values.copy_from_slice(&product[from(output)..][..TILE]);
            }
            for row in 0..TILE {
                let values = &mut out[to(row)..][..TILE];
                for (value, column) in values.iter_mut().zip(&tile) {
                    *value = join(*value, column[row]);
                }
            }
        }
    }
}

/// A stretch of rows from row `first` of the product on.
struct TurnTask<'a> {
    first: usize,
    /// rows x outputs.
    out: &'a mut [f32],
}

impl Cost for TurnTask<'_> {
    fn cost(&self) -> usize {
        self.out.len() * TURN_COST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_and_adding_meet_every_element() {
        for (count, outputs) in [(1, 5), (3, 40), (17, 16), (33, 35)] {
            let product: Vec<f32> = (0..count * outputs).map(|at| at as f32).collect();
            let mut rows = vec![0.0; count * outputs];
            transpose_rows(&product, count, 0..count, &mut rows);
            for row in 0..count {
                for output in 0..outputs {
                    assert_eq!(rows[row * outputs + output], (output * count + row) as f32);
                }
            }
            let doubled: Vec<f32> = rows.iter().map(|value| value * 2.0).collect();
            add_product(&product, count, &mut rows);
            assert_eq!(rows, doubled);
        }
    }
}
