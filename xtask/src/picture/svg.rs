//! Terminal windows as an SVG image: text only, so that it can be read without scripts or fonts of ours.

use std::fmt::Write;

/// Columns of a window; longer lines are wrapped.
pub(super) const COLUMNS: usize = 96;

const CHAR_WIDTH: f64 = 8.4;
const LINE_HEIGHT: usize = 20;
const MARGIN: usize = 16;
const BAR: usize = 32;
const GAP: usize = 14;

/// Terminal with one command and its output.
pub(super) struct Window {
    title: String,
    command: String,
    output: Vec<String>,
}

impl Window {
    pub(super) fn new(title: &str, command: &str, output: &str) -> Self {
        let output = output.trim_end().lines().flat_map(wrap).collect();
        Self { title: title.to_owned(), command: command.to_owned(), output }
    }

    fn height(&self) -> usize {
        BAR + MARGIN + LINE_HEIGHT * (1 + self.output.len()) + MARGIN / 2
    }

    /// Adds the window to an image, with its top at `top`.
    fn draw(&self, svg: &mut String, top: usize, width: usize) {
        let (height, middle) = (self.height(), top + BAR / 2 + 5);
        let _ =
            writeln!(svg, r##"<rect y="{top}" width="{width}" height="{height}" rx="8" fill="#1b1f27"/>"##);
        for (number, color) in ["#ff5f57", "#febc2e", "#28c840"].iter().enumerate() {
            let (x, y) = (MARGIN + 4 + 18 * number, top + BAR / 2);
            let _ = writeln!(svg, r#"<circle cx="{x}" cy="{y}" r="5" fill="{color}"/>"#);
        }
        let title = escape(&self.title);
        let _ = writeln!(svg, r#"<text class="t" x="{}" y="{middle}">{title}</text>"#, width / 2);
        let mut y = top + BAR + MARGIN;
        let prompt = format!(r#"<tspan class="p">$ </tspan>{}"#, escape(&self.command));
        let mut line = |class: &str, columns: usize, text: &str| {
            // The length keeps columns in place, whatever font a reader has.
            #[expect(clippy::cast_precision_loss, reason = "a line has few columns")]
            let length = columns as f64 * CHAR_WIDTH;
            let _ = writeln!(
                svg,
                r#"<text class="{class}" x="{MARGIN}" y="{y}" textLength="{length:.1}" xml:space="preserve">{text}</text>"#,
            );
            y += LINE_HEIGHT;
        };
        line("c", 2 + self.command.chars().count(), &prompt);
        for text in &self.output {
            line("o", text.chars().count(), &escape(text));
        }
    }
}

/// Returns an image of the windows, one below the other.
pub(super) fn draw(windows: &[Window]) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a few hundred points"
    )]
    let width = (COLUMNS as f64 * CHAR_WIDTH) as usize + 2 * MARGIN;
    let height = windows.iter().map(|window| window.height() + GAP).sum::<usize>() - GAP;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
         <!-- Drawn by `cargo xtask picture` from the output of the binary. -->\n\
         <style>text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #c9d1d9 }}\n\
         .c {{ fill: #ffffff; font-weight: 600 }} .p {{ fill: #3fb950 }} .t {{ fill: #8b949e; text-anchor: middle }}</style>\n"
    );
    let mut top = 0;
    for window in windows {
        window.draw(&mut svg, top, width);
        top += window.height() + GAP;
    }
    svg + "</svg>\n"
}

/// Splits a line that is too long at blanks, where possible.
fn wrap(line: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let indent = line.chars().take_while(|c| *c == ' ').count();
    for word in line.split_inclusive(' ') {
        let current = lines.last().map_or(0, |line| line.chars().count());
        if current > indent && current + word.trim_end().chars().count() > COLUMNS {
            lines.push(" ".repeat(indent + 2));
        }
        if let Some(last) = lines.last_mut() {
            *last += word;
        }
    }
    lines
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_wrapped_at_a_blank_and_loses_nothing() {
        let line = format!("  {}", "word ".repeat(40));
        let lines = wrap(&line);
        assert!(
            lines.len() > 1 && lines.iter().all(|line| line.trim_end().chars().count() <= COLUMNS),
            "{lines:?}"
        );
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&lines.concat()), words(&line));
        assert_eq!(wrap(""), [""]);
        assert_eq!(wrap(&"x".repeat(200)), ["x".repeat(200)]);
    }

    #[test]
    fn an_image_contains_the_text_and_no_markup_of_it() {
        let svg = draw(&[
            Window::new("a", "leasehold run a -- <x>", "one & two\n\n"),
            Window::new("b", "c", "three\n"),
        ]);
        for part in
            ["<tspan class=\"p\">$ </tspan>leasehold run a -- &lt;x&gt;", ">one &amp; two<", ">three<"]
        {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(svg.ends_with("</svg>\n"));
    }
}
