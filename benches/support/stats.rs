//! Percentiles, medians, fairness.

/// All contenders. Each round begins with another one, so that none always follows the same one.
pub fn in_turn<T>(contenders: &mut [T], round: usize) -> impl Iterator<Item = &mut T> {
    let (before, after) = contenders.split_at_mut(round % contenders.len().max(1));
    after.iter_mut().chain(before)
}

/// The value below which this share of all values lies. Sorts them.
pub fn percentile(values: &mut [u64], share: f64) -> u64 {
    if values.is_empty() {
        return 0;
    }
    values.sort_unstable();
    let at = (values.len() as f64 * share) as usize;
    values[at.min(values.len() - 1)]
}

/// The middle value; for an even number, the mean of the two in the middle.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    if values.is_empty() {
        return f64::NAN;
    }
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) }
}

/// Jain's index: 1 if all have the same, 1/n if one has all.
pub fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

/// The slope of `log y` over `log x`, by least squares: 0 is flat, 1 is in proportion.
pub fn slope(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|&(x, y)| (x.log2(), y.log2())).collect();
    let n = logs.len() as f64;
    let (mean_x, mean_y) =
        (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
    let above: f64 = logs.iter().map(|p| (p.0 - mean_x) * (p.1 - mean_y)).sum();
    let below: f64 = logs.iter().map(|p| (p.0 - mean_x).powi(2)).sum();
    above / below
}
