//! A cost that grows with rows, learnt from measurements.

/// What a measurement keeps of its weight when the next one comes.
const KEPT: f64 = 31.0 / 32.0;

/// Rows that differ by less than this share of their mean say nothing about a slope: chance would.
const LEAST_SPREAD: f64 = 0.25;

/// `fixed + each * rows`, by least squares over measurements that fade. Neither part is below zero.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Line {
    weight: f64,
    rows: f64,
    cost: f64,
    rows_squared: f64,
    rows_by_cost: f64,
    /// The slope when rows last said something about it. A scheduler that has found its number of waves makes passes of
    /// one size for ever, and what it knew of others still holds.
    each: Option<f64>,
}

impl Line {
    /// Takes in that `rows` rows cost `cost`.
    pub(super) fn measure(&mut self, rows: f64, cost: f64) {
        let fade = |sum: &mut f64, new: f64| *sum = *sum * KEPT + new;
        fade(&mut self.weight, 1.0);
        fade(&mut self.rows, rows);
        fade(&mut self.cost, cost);
        fade(&mut self.rows_squared, rows * rows);
        fade(&mut self.rows_by_cost, rows * cost);
        let (mean_rows, mean_cost) = self.means();
        let variance = self.rows_squared / self.weight - mean_rows * mean_rows;
        if variance > (LEAST_SPREAD * mean_rows).powi(2) {
            let covariance = self.rows_by_cost / self.weight - mean_rows * mean_cost;
            self.each = Some((covariance / variance).max(0.0));
        }
    }

    /// What `rows` rows are expected to cost; nothing where nothing was measured.
    pub(super) fn at(&self, rows: f64) -> f64 {
        if self.weight == 0.0 || self.rows == 0.0 {
            return 0.0;
        }
        let (mean_rows, mean_cost) = self.means();
        let steepest = mean_cost / mean_rows;
        // Where one size alone was ever seen, half of its cost is taken to be there whatever the size.
        let each = self.each.map_or(steepest / 2.0, |each| each.min(steepest));
        mean_cost + each * (rows - mean_rows)
    }

    /// Of rows and of their cost, once something was measured.
    fn means(&self) -> (f64, f64) {
        (self.rows / self.weight, self.cost / self.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-9 * expected.abs().max(1.0)
    }

    #[test]
    fn a_line_is_found_again() {
        let mut line = Line::default();
        assert_eq!(line.at(7.0), 0.0);
        for rows in [1.0, 9.0, 4.0, 64.0, 2.0] {
            line.measure(rows, 3.0 + 0.25 * rows);
        }
        assert!(close(line.at(0.0), 3.0) && close(line.at(100.0), 28.0), "{line:?}");
    }

    #[test]
    fn one_size_says_nothing_about_the_slope() {
        let mut line = Line::default();
        for _ in 0..5 {
            line.measure(8.0, 4.0);
        }
        assert!(close(line.at(8.0), 4.0) && close(line.at(16.0), 6.0) && close(line.at(0.0), 2.0));
    }

    #[test]
    fn a_slope_is_remembered_while_one_size_is_seen() {
        let mut line = Line::default();
        for rows in [4.0, 8.0, 16.0] {
            line.measure(rows, 50.0 + 0.5 * rows);
        }
        // That two sizes next to each other differ is chance.
        for _ in 0..1000 {
            line.measure(16.0, 59.0);
            line.measure(17.0, 57.5);
        }
        assert!((line.at(0.0) - 50.0).abs() < 1.0 && (line.at(32.0) - 66.0).abs() < 1.0, "{line:?}");
    }

    #[test]
    fn no_part_is_below_zero() {
        let (mut falling, mut steep) = (Line::default(), Line::default());
        for rows in [1.0, 2.0, 3.0] {
            falling.measure(rows, 10.0 - rows);
            steep.measure(rows, rows * rows);
        }
        assert!(falling.at(1.0) <= falling.at(100.0));
        assert!(steep.at(0.0) > -1e-9);
    }

    #[test]
    fn what_was_measured_long_ago_fades() {
        let mut line = Line::default();
        for _ in 0..200 {
            line.measure(4.0, 100.0);
        }
        for _ in 0..200 {
            line.measure(4.0, 1.0);
        }
        assert!((line.at(4.0) - 1.0).abs() < 0.5, "{}", line.at(4.0));
    }
}
