//! A cost that grows with rows, from what it was at some numbers of them.

/// Seconds by rows: lines between what was measured, the last of them drawn on. More rows never cost less.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve(Vec<(f64, f64)>);

impl Curve {
    /// Through the points (rows, seconds), in any order. Nothing where there is no point, or one of no rows or with seconds
    /// that are no time.
    pub fn new(points: impl IntoIterator<Item = (usize, f64)>) -> Option<Curve> {
        let mut points: Vec<(f64, f64)> =
            points.into_iter().map(|(rows, seconds)| (rows as f64, seconds)).collect();
        let is_sound = |&(rows, seconds): &(f64, f64)| rows >= 1.0 && seconds.is_finite() && seconds >= 0.0;
        if points.is_empty() || !points.iter().all(is_sound) {
            return None;
        }
        points.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
        let mut most: f64 = 0.0;
        for point in &mut points {
            most = most.max(point.1);
            point.1 = most;
        }
        points.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                earlier.1 = later.1;
            }
            is_same
        });
        Some(Curve(points))
    }

    /// What `rows` rows are expected to cost, in seconds. Below the fewest that were measured: as much as those. Where one
    /// number was measured alone, half of its cost is taken to be there whatever the number.
    pub fn at(&self, rows: f64) -> f64 {
        let points = &self.0;
        match points[..] {
            [] => 0.0,
            [(only, cost)] => cost * (0.5 + 0.5 * (rows / only).max(0.0)),
            [(first, cost), ..] if rows <= first => cost,
            _ => {
                let next = points.partition_point(|point| point.0 < rows).clamp(1, points.len() - 1);
                let ((low, from), (high, to)) = (points[next - 1], points[next]);
                from + (to - from) / (high - low) * (rows - low)
            }
        }
    }

    /// The numbers of rows that were measured, and their seconds, ascending.
    pub fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn between_and_beyond_points_there_are_lines() {
        let curve = Curve::new([(8, 3.0), (1, 1.0), (64, 10.0)]).unwrap();
        assert_eq!((curve.at(1.0), curve.at(8.0), curve.at(64.0)), (1.0, 3.0, 10.0));
        assert_eq!(curve.at(4.5), 2.0);
        assert_eq!(curve.at(120.0), 17.0);
        assert_eq!((curve.at(0.5), curve.at(0.0)), (1.0, 1.0));
        assert_eq!(curve.points().count(), 3);
    }

    #[test]
    fn one_point_says_half_about_the_slope() {
        let curve = Curve::new([(8, 4.0)]).unwrap();
        assert_eq!((curve.at(8.0), curve.at(16.0), curve.at(0.0)), (4.0, 6.0, 2.0));
    }

    #[test]
    fn what_is_no_measurement_is_refused() {
        for points in
            [vec![], vec![(0, 1.0)], vec![(1, f64::NAN)], vec![(1, 1.0), (2, -1.0)], vec![(1, f64::INFINITY)]]
        {
            assert_eq!(Curve::new(points.clone()), None, "{points:?}");
        }
    }

    #[test]
    fn of_two_measurements_at_one_number_the_longer_counts_and_more_rows_never_cost_less() {
        let curve = Curve::new([(1, 1.0), (1, 2.0), (4, 1.5)]).unwrap();
        assert_eq!((curve.at(1.0), curve.at(4.0), curve.at(9.0)), (2.0, 2.0, 2.0));
    }

    proptest! {
        #[test]
        fn it_never_falls(
            points in proptest::collection::vec((1usize..300, 0.0f64..10.0), 1..6),
            one in 0.0f64..500.0,
            more in 0.0f64..500.0,
        ) {
            let curve = Curve::new(points).unwrap();
            prop_assert!(curve.at(one) >= 0.0 && curve.at(one) <= curve.at(one + more) + 1e-9);
        }
    }
}
