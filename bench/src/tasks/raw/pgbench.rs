//! PostgreSQL without leasehold, by pgbench: what the server can do with a client that costs next to nothing.

use anyhow::{Context, Result};

use super::postgres::{create, fetch, insert};
use crate::pgbench::Pgbench;
use crate::place::Place;
use crate::tasks::figure::Figure;

impl Pgbench {
    pub(in crate::tasks) fn enqueue(
        &self,
        place: &Place,
        clients: u32,
        batch: u32,
        seconds: f64,
    ) -> Result<Figure> {
        create(place, 0)?;
        let script = insert(&place.space(), batch) + ";\n";
        let whole_seconds = format!("{:.0}", seconds.ceil());
        let said = self.run(place, &script, &["--client", &clients.to_string(), "--time", &whole_seconds])?;
        rate(&said, batch)
    }

    /// One client takes so many and deletes them, again and again.
    pub(in crate::tasks) fn drain(&self, place: &Place, tasks: u64, batch: u32) -> Result<Figure> {
        create(place, tasks)?;
        let (schema, again) = (place.space(), (tasks / u64::from(batch)).to_string());
        let script = format!(
            "WITH taken AS ({}) SELECT array_agg(id)::text AS ids, string_agg(payload, ' ') AS payloads FROM taken \\gset\n\
             DELETE FROM {schema}.raw WHERE id = ANY (:ids::bigint[]);\n",
            fetch(&schema, batch)
        );
        rate(&self.run(place, &script, &["--client", "1", "--transactions", &again])?, batch)
    }
}

/// How many tasks each second, at so many for each transaction.
fn rate(said: &str, batch: u32) -> Result<Figure> {
    let tps = said.lines().find_map(|line| line.strip_prefix("tps = "));
    let tps = tps.and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    let rate = tps.context("pgbench does not say how many transactions it made")? * f64::from(batch);
    Ok(Figure { rate: Some(rate), times: None })
}
