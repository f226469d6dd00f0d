//! Writer for the Prometheus text format: a help line and a type line for each name, then its samples.

use std::fmt::{Display, Write};

use leasehold::store::Buckets;

/// Page under construction.
#[derive(Default)]
pub(super) struct Page {
    text: String,
    name: &'static str,
}

/// Type of a metric.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Label and its value.
pub(super) type Label<'a> = (&'static str, &'a str);

impl Page {
    /// Starts a metric. All its samples must follow before the next metric.
    pub(super) fn metric(&mut self, name: &'static str, kind: Kind, help: &str) -> &mut Self {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        self.name = name;
        self
    }

    /// Writes one sample.
    pub(super) fn sample(&mut self, labels: &[Label<'_>], value: impl Display) -> &mut Self {
        self.line("", labels, None, value);
        self
    }

    /// Writes the samples of a histogram, with cumulative counts as the format requires.
    pub(super) fn buckets(&mut self, labels: &[Label<'_>], buckets: &Buckets) -> &mut Self {
        let mut below = 0;
        for (bound, count) in buckets.bounds.iter().zip(&buckets.counts) {
            below += count;
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            self.line("_bucket", labels, Some(("le", &bound)), below);
        }
        self.line("_sum", labels, None, buckets.sum);
        self.line("_count", labels, None, below);
        self
    }

    /// Returns the complete page.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, suffix: &str, labels: &[Label<'_>], last: Option<Label<'_>>, value: impl Display) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        let mut sign = '{';
        for (label, value) in labels.iter().copied().chain(last) {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{sign}{label}=\"{value}\"");
            sign = ',';
        }
        let end = if sign == ',' { "}" } else { "" };
        let _ = writeln!(self.text, "{end} {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_written_as_prometheus_reads_it() {
        let mut page = Page::default();
        page.metric("a_total", Kind::Counter, "What it\nis.").sample(&[], 3);
        page.metric("b", Kind::Gauge, "b").sample(&[("q", "x\"y\\z\n"), ("s", "t")], 0.5);
        let buckets = Buckets { bounds: vec![0.1, f64::INFINITY], counts: vec![2, 1], sum: 1.5 };
        page.metric("c_seconds", Kind::Histogram, "c").buckets(&[("op", "get")], &buckets);
        assert_eq!(
            page.finish(),
            "# HELP a_total What it\\nis.\n# TYPE a_total counter\na_total 3\n\
             # HELP b b\n# TYPE b gauge\nb{q=\"x\\\"y\\\\z\\n\",s=\"t\"} 0.5\n\
             # HELP c_seconds c\n# TYPE c_seconds histogram\n\
             c_seconds_bucket{op=\"get\",le=\"0.1\"} 2\nc_seconds_bucket{op=\"get\",le=\"+Inf\"} 3\n\
             c_seconds_sum{op=\"get\"} 1.5\nc_seconds_count{op=\"get\"} 3\n"
        );
    }
}
