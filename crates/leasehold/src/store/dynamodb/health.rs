//! Health checks of a table for `leasehold doctor`.

use aws_sdk_dynamodb::types::{
    BillingMode, ContinuousBackupsStatus, MultiRegionConsistency, PointInTimeRecoveryStatus, TableDescription,
};

use super::item::TTL;
use super::table::{Table, ttl_attribute};
use crate::model::format_duration;
use crate::store::server_clock::Judge;
use crate::store::{BootInstant, HealthCheck};

pub(super) async fn check_health(table: &Table) -> Vec<HealthCheck> {
    let mut checks = Vec::new();
    match table.client.describe_table().table_name(table.name()).send().await {
        Ok(response) => {
            if let Some(described) = response.table {
                checks.push(size(&described));
                checks.extend(replicas(&described));
            }
        }
        Err(error) => checks.push(unknown("table", error.into_service_error().meta().code())),
    }
    checks.push(region(table));
    checks.push(time_to_live(table).await);
    checks.push(backups(table).await);
    checks.push(clock(table));
    checks
}

fn size(table: &TableDescription) -> HealthCheck {
    let mode = table.billing_mode_summary().and_then(|billing| billing.billing_mode());
    let billing = match mode {
        Some(BillingMode::PayPerRequest) => "on demand".to_owned(),
        _ => {
            let capacity = table.provisioned_throughput();
            let (reads, writes) = (
                capacity.and_then(|capacity| capacity.read_capacity_units).unwrap_or(0),
                capacity.and_then(|capacity| capacity.write_capacity_units).unwrap_or(0),
            );
            format!("provisioned for {reads} reads and {writes} writes a second")
        }
    };
    let status = table.table_status().map_or("?", |status| status.as_str()).to_lowercase();
    let (items, bytes) = (table.item_count().unwrap_or(0), table.table_size_bytes().unwrap_or(0));
    HealthCheck::ok("table", format!("{status}, {billing}; {items} items, {bytes} bytes at the last count"))
}

/// Checks replicas in other regions, which accept conditional writes and reconcile later.
fn replicas(table: &TableDescription) -> Option<HealthCheck> {
    if table.replicas().is_empty() {
        return None;
    }
    let regions: Vec<&str> = table.replicas().iter().filter_map(|replica| replica.region_name()).collect();
    let regions = regions.join(", ");
    if table.multi_region_consistency() == Some(&MultiRegionConsistency::Strong) {
        return Some(HealthCheck::ok("replicas", format!("strongly consistent in {regions}")));
    }
    Some(HealthCheck::issue(
        "replicas",
        format!("a global table, also in {regions}: two regions can grant the same lock"),
        "DYNAMODB_GLOBAL_TABLE",
        "let all clients use the same region, or make the table multi-Region strongly consistent",
    ))
}

fn region(table: &Table) -> HealthCheck {
    let region = table.client.config().region().map_or("?", |region| region.as_ref()).to_owned();
    match &table.options.endpoint {
        Some(endpoint) => HealthCheck::ok("region", format!("{region}, at {endpoint}")),
        None => HealthCheck::ok("region", region),
    }
}

async fn time_to_live(table: &Table) -> HealthCheck {
    let hint = format!(
        "turn time to live on for the attribute '{TTL}'; until then old history is never deleted and costs money"
    );
    match ttl_attribute(table).await {
        Ok(Some(attribute)) if attribute == TTL => {
            HealthCheck::ok("time to live", format!("old history is deleted by '{TTL}'"))
        }
        Ok(Some(other)) => HealthCheck::issue(
            "time to live",
            format!("on '{other}' instead of '{TTL}': old history is never deleted"),
            "DYNAMODB_TTL_OFF",
            hint,
        ),
        Ok(None) => {
            HealthCheck::issue("time to live", "off: old history is never deleted", "DYNAMODB_TTL_OFF", hint)
        }
        Err(error) => HealthCheck::ok("time to live", format!("unknown: {error}")),
    }
}

async fn backups(table: &Table) -> HealthCheck {
    let name = "recovery";
    match table.client.describe_continuous_backups().table_name(table.name()).send().await {
        Ok(response) => {
            let backups = response.continuous_backups_description;
            let is_on = backups.as_ref().is_some_and(|backups| {
                backups.continuous_backups_status == ContinuousBackupsStatus::Enabled
                    && backups
                        .point_in_time_recovery_description()
                        .and_then(|recovery| recovery.point_in_time_recovery_status())
                        == Some(&PointInTimeRecoveryStatus::Enabled)
            });
            let state = if is_on { "on" } else { "off; tokens keep rising without it" };
            HealthCheck::ok(name, format!("point-in-time recovery is {state}"))
        }
        Err(error) => unknown(name, error.into_service_error().meta().code()),
    }
}

fn clock(table: &Table) -> HealthCheck {
    let rule = match table.options.judge {
        Judge::Watch => "a lease has expired when it was seen unchanged for its duration".to_owned(),
        Judge::Date { skew } => {
            format!(
                "a lease has expired when the Date of the responses is {} past its end",
                format_duration(skew)
            )
        }
    };
    let offset = match table.dates.skew(BootInstant::now()) {
        Some(seconds) if seconds.abs() <= 1 => "this machine's clock agrees with the service's".to_owned(),
        Some(seconds) if seconds > 0 => format!("this machine's clock is {seconds} s behind the service's"),
        Some(seconds) => format!("this machine's clock is {} s ahead of the service's", -seconds),
        None => "the responses have no Date header".to_owned(),
    };
    HealthCheck::ok("lease clock", format!("{rule}; {offset}"))
}

fn unknown(name: &'static str, code: Option<&str>) -> HealthCheck {
    HealthCheck::ok(name, format!("unknown: {}", code.unwrap_or("no response")))
}
