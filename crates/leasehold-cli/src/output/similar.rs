//! Suggestions for mistyped names.

/// Returns the candidate that is most similar to a name, if it differs in a few characters only.
pub(crate) fn most_similar(name: &str, candidates: impl IntoIterator<Item = String>) -> Option<String> {
    let near = candidates.into_iter().filter(|candidate| candidate != name).filter_map(|candidate| {
        let distance = strsim::osa_distance(name, &candidate);
        let longer = name.chars().count().max(candidate.chars().count());
        (distance <= longer / 3).then_some((distance, candidate))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// Returns the end of a sentence that suggests a similar name; empty if there is none.
pub(crate) fn suggestion(name: &str, candidates: impl IntoIterator<Item = String>) -> String {
    most_similar(name, candidates).map(|similar| format!("; did you mean '{similar}'?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_that_differs_little_is_suggested() {
        let known = || ["mail", "reports", "a"].map(str::to_owned);
        assert_eq!(most_similar("mial", known()).as_deref(), Some("mail"));
        assert_eq!(most_similar("report", known()).as_deref(), Some("reports"));
        for other in ["b", "video", "mail", ""] {
            assert_eq!(most_similar(other, known()), None, "{other}");
        }
    }
}
