//! Pictures that the server draws as SVG.

pub(super) mod chart;
pub(super) mod ring;
pub(super) mod timeline;
