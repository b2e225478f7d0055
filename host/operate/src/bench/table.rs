//! The tables that people read.

use super::kernels::{Figure, Part};
use crate::output;

/// What the figures mean.
pub const LEGEND: &str = "\
us: microseconds of wall clock for one row through one expert, the median; G/s: multiply-adds per second in thousands of
millions; GB/s: weights read per second at the smallest number of rows, beside which the speed of memory says how near the
bound is. Weights are made up, and, atlas's apart, in all far larger than the caches.";

/// Width of one pair of figures.
const PAIR: usize = 17;

/// One contestant's figures.
pub struct Column {
    /// Who.
    pub name: String,
    /// For each number of rows.
    pub figures: Vec<Figure>,
}

/// The table of one shape and format.
pub fn kernel_table(part: &Part, rows: &[usize], columns: &[Column]) -> String {
    let shape = part.expert();
    let bytes = shape.expert_bytes() as f64 / 1e6;
    let mut lines = vec![format!(
        "{} {}: {} x {}, {bytes:.2} MB an expert, {} experts in turn",
        shape.format,
        output::name(&part.shape.name),
        shape.hidden,
        shape.width,
        part.experts()
    )];
    let mut head = format!("  {:10}", "");
    for rows in rows {
        let told = format!("{rows} row{}", if *rows == 1 { "" } else { "s" });
        head.push_str(&format!("{told:>PAIR$}"));
    }
    lines.push(head);
    let mut head = format!("  {:10}", "");
    rows.iter().for_each(|_| head.push_str(&format!("{:>10}{:>7}", "us", "G/s")));
    lines.push(format!("{head}{:>8}", "GB/s"));
    for column in columns {
        lines.push(line(column));
        let mut reasons: Vec<&str> = column
            .figures
            .iter()
            .filter_map(|figure| figure.outcome.as_ref().err().map(String::as_str))
            .collect();
        reasons.dedup();
        if column.figures.iter().any(|figure| figure.outcome.is_ok()) {
            lines.extend(reasons.iter().map(|reason| format!("  {:10}  - skipped: {reason}", "")));
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

fn line(column: &Column) -> String {
    let mut line = format!("  {:10}", column.name);
    let mut weights = None;
    for figure in &column.figures {
        match &figure.outcome {
            Ok(rates) => {
                weights = weights.or(Some(rates.weight_bytes));
                line.push_str(&format!("{:>10.1}{:>7.1}", rates.microseconds, rates.multiply_adds / 1e9));
            }
            Err(_) => line.push_str(&format!("{:>10}{:>7}", "-", "")),
        }
    }
    if let (None, Some(figure)) = (weights, column.figures.first())
        && let Err(reason) = &figure.outcome
    {
        return format!("  {:10} skipped: {}", column.name, output::name(reason));
    }
    weights.map_or(line.clone(), |weights| format!("{line}{:>8.1}", weights / 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::kernels::Rates;

    #[test]
    fn figures_stand_in_columns_and_a_reason_in_their_place() {
        let rates = Rates { microseconds: 461.25, best: 450.0, multiply_adds: 20.46e9, weight_bytes: 11.5e9 };
        let figures = vec![
            Figure { rows: 1, outcome: Ok(rates) },
            Figure { rows: 512, outcome: Err("too long".to_owned()) },
        ];
        let told = line(&Column { name: "avx2".to_owned(), figures });
        assert_eq!(told, "  avx2           461.2   20.5         -           11.5");
        let figures = vec![Figure { rows: 1, outcome: Err("no\nkernel".to_owned()) }];
        let told = line(&Column { name: "wasm".to_owned(), figures });
        assert_eq!(told, "  wasm       skipped: no\\nkernel");
    }
}
