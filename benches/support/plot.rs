//! Line plots as SVG, both axes logarithmic.

use std::path::{Path, PathBuf};

use plotters::prelude::*;

const SIZE: (u32, u32) = (900, 520);

/// One line: its name, and its points.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// Where the plots of full runs belong.
pub fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/plots")
}

/// Draws `lines` into `<name>.svg`.
pub fn lines(dir: &Path, name: &str, title: &str, x: &str, y: &str, lines: &[Line]) {
    std::fs::create_dir_all(dir).unwrap();
    let file = dir.join(format!("{name}.svg"));
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN, f64::max);
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MAX, f64::min);
    let right = most(&mut points().map(|point| point.0));
    let (low, high) =
        (least(&mut points().map(|point| point.1)), most(&mut points().map(|point| point.1)));

    let area = SVGBackend::new(&file, SIZE).into_drawing_area();
    area.fill(&WHITE).unwrap();
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d((1.0..right).log_scale().base(2.0), (low / 2.0..high * 2.0).log_scale())
        .unwrap();
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| label(*y))
        .draw()
        .unwrap();
    for (at, line) in lines.iter().enumerate() {
        let colour = Palette99::pick(at).to_rgba();
        let drawn = chart
            .draw_series(
                LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)).point_size(3),
            )
            .unwrap();
        drawn
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    let mut legend = chart.configure_series_labels();
    legend
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK)
        .draw()
        .unwrap();
    area.present().unwrap();
    eprintln!("  … drawn: {}", file.display());
}

fn label(value: f64) -> String {
    if value < 1.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}
