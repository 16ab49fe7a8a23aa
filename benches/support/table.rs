//! Markdown tables that are also readable in a terminal.

/// Rows of cells under a heading.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(heading: &[&str]) -> Self {
        Self { rows: vec![heading.iter().map(|&cell| cell.to_owned()).collect()] }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints the table, with names on the left and numbers aligned to the right.
    pub fn print(&self) {
        let columns = self.rows[0].len();
        let wide = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(2)
        };
        let widths: Vec<usize> = (0..columns).map(wide).collect();
        let line = |row: &[String]| {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(at, (cell, &width))| {
                if at == 0 { format!(" {cell:<width$} |") } else { format!(" {cell:>width$} |") }
            });
            println!("|{}", cells.collect::<String>());
        };
        line(&self.rows[0]);
        let rule = widths.iter().enumerate();
        let rule: String = rule
            .map(|(at, &width)| {
                if at == 0 {
                    format!("{}|", "-".repeat(width + 2))
                } else {
                    format!("{}:|", "-".repeat(width + 1))
                }
            })
            .collect();
        println!("|{rule}");
        self.rows[1..].iter().for_each(|row| line(row));
        println!();
    }
}

/// Nanoseconds as microseconds.
pub fn us(ns: f64) -> String {
    if !ns.is_finite() {
        return "–".to_owned();
    }
    let us = ns / 1000.0;
    match us {
        us if us.abs() < 1.0 => format!("{us:.3}"),
        us if us.abs() < 100.0 => format!("{us:.1}"),
        us => thousands(us),
    }
}

/// A whole number with commas.
pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", &*digits), |rest| ("-", rest));
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    format!("{sign}{text}")
}
