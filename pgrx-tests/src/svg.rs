//! A picture as SVG, drawn by hand: it is read on a light page and on a dark one.

pub const WIDTH: f64 = 760.0;

const STYLE: &str = "
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .panel { font-weight: 600; }
  .other { fill: #8c959f; }
  .ours { fill: #2f81f7; }
  .ceiling { fill: none; stroke: #8c959f; stroke-dasharray: 4 3; }
  .line { fill: none; stroke: #2f81f7; stroke-width: 1.5; }
  .axis { stroke: #8c959f; }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .other { fill: #6e7681; } }
";

pub fn page(title: &str, height: f64, shapes: &str) -> String {
    let title = escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" width=\"{WIDTH:.0}\" height=\"{height:.0}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n\
         <text class=\"title\" x=\"0\" y=\"18\">{title}</text>\n{shapes}</svg>\n"
    )
}

pub fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}
