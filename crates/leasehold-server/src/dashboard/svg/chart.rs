//! Charts of the last hours, as SVG.

use maud::{Markup, html};

/// Length of the charts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Span {
    Hour,
    SixHours,
    #[default]
    Day,
}

impl Span {
    pub(crate) const ALL: [Self; 3] = [Self::Hour, Self::SixHours, Self::Day];

    /// Returns the word in the address.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Hour => "1h",
            Self::SixHours => "6h",
            Self::Day => "24h",
        }
    }

    /// Returns the length in hours.
    pub(in crate::dashboard) const fn hours(self) -> u64 {
        match self {
            Self::Hour => 1,
            Self::SixHours => 6,
            Self::Day => 24,
        }
    }

    /// Returns the minutes of one step. Servers record figures about once a minute, so that a step of one
    /// minute may have none.
    pub(in crate::dashboard) const fn step(self) -> u64 {
        match self {
            Self::Hour => 2,
            Self::SixHours => 5,
            Self::Day => 10,
        }
    }

    /// Returns the number of steps.
    pub(in crate::dashboard) fn steps(self) -> usize {
        usize::try_from(self.hours() * 60 / self.step()).unwrap_or_default()
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Hour => "last hour",
            Self::SixHours => "last 6 hours",
            Self::Day => "last 24 hours",
        }
    }

    /// Returns the labels of the begin and of the middle.
    const fn axis(self) -> [&'static str; 2] {
        match self {
            Self::Hour => ["60 min ago", "30 min"],
            Self::SixHours => ["6 h ago", "3 h"],
            Self::Day => ["24 h ago", "12 h"],
        }
    }
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 96.0;

/// Line of a chart: a label, a number for its colour, and a value for each step.
pub(in crate::dashboard) struct Line {
    pub(in crate::dashboard) label: &'static str,
    pub(in crate::dashboard) colour: u8,
    pub(in crate::dashboard) values: Vec<f64>,
}

/// Returns a chart with its largest value, and the last value of each line. `format` writes a value.
pub(in crate::dashboard) fn chart(
    span: Span,
    title: &str,
    lines: &[Line],
    format: fn(f64) -> String,
) -> Markup {
    let [begin, middle] = span.axis();
    let largest = lines.iter().flat_map(|line| &line.values).copied().fold(0.0, f64::max);
    let scale = if largest > 0.0 { (HEIGHT - 6.0) / largest } else { 0.0 };
    let summary: Vec<String> = lines.iter().map(|line| summary(line, format)).collect();
    html! {
        figure.chart {
            figcaption { span { (title) } span.quiet { "max " (format(largest)) } }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img"
                aria-label=(format!("{title}, {}. {}", span.label(), summary.join(". "))) {
                @for part in 1..4 {
                    @let x = WIDTH / 4.0 * f64::from(part);
                    line.grid x1=(x) x2=(x) y1="0" y2=(HEIGHT) {}
                }
                line.grid x1="0" x2=(WIDTH) y1=(HEIGHT - 0.5) y2=(HEIGHT - 0.5) {}
                @for line in lines {
                    @let points = points(&line.values, scale);
                    @if lines.len() == 1 {
                        polygon.area data-colour=(line.colour) points=(format!("0,{HEIGHT} {points} {WIDTH},{HEIGHT}")) {}
                    }
                    polyline.line data-colour=(line.colour) points=(points) {}
                }
            }
            div.axis aria-hidden="true" { span { (begin) } span { (middle) } span { "now" } }
            ul.legend {
                @for line in lines {
                    li { span.swatch data-colour=(line.colour) {} (line.label) " "
                        span.quiet { (format(line.values.last().copied().unwrap_or_default())) } }
                }
            }
        }
    }
}

fn summary(line: &Line, format: fn(f64) -> String) -> String {
    let largest = line.values.iter().copied().fold(0.0, f64::max);
    let last = line.values.last().copied().unwrap_or_default();
    format!("{}: now {}, at most {}", line.label, format(last), format(largest))
}

fn points(values: &[f64], scale: f64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a few hundred steps")]
    let step = WIDTH / (values.len().max(2) - 1) as f64;
    let point = |(number, value): (usize, &f64)| {
        #[expect(clippy::cast_precision_loss, reason = "a few hundred steps")]
        let x = number as f64 * step;
        format!("{x:.1},{:.1}", HEIGHT - 1.0 - value * scale)
    };
    values.iter().enumerate().map(point).collect::<Vec<_>>().join(" ")
}

/// Writes a count.
pub(in crate::dashboard) fn count(value: f64) -> String {
    if value >= 10.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// Writes a duration in seconds.
pub(in crate::dashboard) fn seconds(value: f64) -> String {
    match value {
        _ if value <= 0.0 => "0".to_owned(),
        _ if value < 0.001 => format!("{:.0} µs", value * 1e6),
        _ if value < 1.0 => format!("{:.0} ms", value * 1e3),
        _ => format!("{value:.0} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_stays_within_its_frame() {
        let values: Vec<f64> = (0..144).map(f64::from).collect();
        let line = Line { label: "held", colour: 0, values };
        let svg = chart(Span::Day, "Locks", &[line], count).into_string();
        let line = svg.split("<polyline").nth(1).unwrap();
        let points = line.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        for point in points.split(' ') {
            let (x, y) = point.split_once(',').unwrap();
            assert!((0.0..=WIDTH).contains(&x.parse().unwrap()), "{point}");
            assert!((0.0..=HEIGHT).contains(&y.parse().unwrap()), "{point}");
        }
        assert!(svg.contains("held: now 143, at most 143"));
        assert!(!chart(Span::Hour, "Empty", &[], count).into_string().contains("NaN"));
    }

    #[test]
    fn the_steps_fill_the_span() {
        for span in Span::ALL {
            assert_eq!(span.steps() as u64 * span.step(), span.hours() * 60);
        }
    }

    #[test]
    fn values_are_readable() {
        assert_eq!([count(0.0), count(3.0), count(2.25), count(1234.5)], ["0", "3", "2.2", "1234"]);
        assert_eq!([seconds(0.0005), seconds(0.041), seconds(44.0)], ["500 µs", "41 ms", "44 s"]);
    }
}
