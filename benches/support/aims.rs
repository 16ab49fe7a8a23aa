//! The aims of a bench, and whether this run reached them.

use super::table::Table;

/// The aims of one bench, each with the measured value.
pub struct Aims {
    table: Table,
    missed: usize,
    met: usize,
}

impl Aims {
    pub fn new() -> Self {
        Self { table: Table::new(&["aim", "measured", "limit", "so"]), missed: 0, met: 0 }
    }

    pub fn at_most(&mut self, what: &str, measured: f64, limit: f64) {
        self.row(what, measured, format!("≤ {}", number(limit)), measured <= limit);
    }

    pub fn at_least(&mut self, what: &str, measured: f64, limit: f64) {
        self.row(what, measured, format!("≥ {}", number(limit)), measured >= limit);
    }

    fn row(&mut self, what: &str, measured: f64, limit: String, met: bool) {
        let so = match (measured.is_nan(), met) {
            (true, _) => "not measured",
            (false, true) => "met",
            (false, false) => "**missed**",
        };
        self.met += usize::from(so == "met");
        self.missed += usize::from(so == "**missed**");
        let measured = if measured.is_nan() { "–".to_owned() } else { number(measured) };
        self.table.row([what.to_owned(), measured, limit, so.to_owned()]);
    }

    /// Prints them all. A number that misses its aim stays in the table.
    pub fn print(&self) {
        println!("### Aims\n");
        self.table.print();
        println!("{} met, {} missed in this run.\n", self.met, self.missed);
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        abs if abs >= 100.0 => format!("{value:.0}"),
        abs if abs >= 10.0 => format!("{value:.1}"),
        abs if abs >= 2.0 => format!("{value:.2}"),
        _ => format!("{value:.4}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}
