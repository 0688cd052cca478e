//! The checks that an API server makes of the rules before it admits a definition: they compile, name existing fields,
//! and cost no more than their budget in the worst case that the schema's bounds allow.
//!
//! `kube-cel` does not check the types of what rules read, and estimates otherwise. The cost here follows cel-go's
//! `checker/cost.go`, with the sizes of `k8s.io/apiserver/pkg/cel`; if those differ by release, the larger size counts.

use std::collections::BTreeMap;

use kube_cel::cel::Program;
use kube_cel::cel::common::ast::operators as op;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue};
use serde_json::{Value, json};

use super::structural::{SchemaPlace, places, size};

/// The most that one rule may cost, times the number of values that it checks.
const RULE: u64 = 10_000_000;
/// The most that all rules of a definition may cost.
const ALL: u64 = 100_000_000;

#[derive(Clone)]
struct ValuePrice {
    cost: u64,
    size: u64,
    /// The schema of its value, if that is a part of the object.
    schema: Option<Value>,
}

fn plain(cost: u64) -> ValuePrice {
    ValuePrice { cost, size: 1, schema: None }
}

/// Computes the cost of expressions. An expression that does not type-check is an error.
struct CostPricer {
    variables: BTreeMap<String, ValuePrice>,
}

impl CostPricer {
    fn new(schema: &Value) -> Self {
        let place = ValuePrice { cost: 1, size: size(schema), schema: Some(schema.clone()) };
        let variables = ["self", "oldSelf"].map(|name| (name.to_owned(), place.clone()));
        Self { variables: variables.into() }
    }

    fn price(&mut self, expression: &IdedExpr) -> Result<ValuePrice, String> {
        match &expression.expr {
            Expr::Literal(LiteralValue::String(text)) => {
                Ok(ValuePrice { cost: 0, size: text.inner().len() as u64, schema: None })
            }
            Expr::Literal(_) => Ok(plain(0)),
            Expr::Ident(name) => self.variables.get(name).cloned().ok_or_else(|| format!("undeclared {name}")),
            Expr::Select(select) => {
                let operand = self.price(&select.operand)?;
                let found = field(&operand, &select.field)?;
                Ok(if select.test { plain(operand.cost + 1) } else { found })
            }
            Expr::List(list) => {
                let costs = list.elements.iter().map(|one| self.price(one)).collect::<Result<Vec<_>, _>>()?;
                let cost = 10 + costs.iter().map(|one| one.cost).sum::<u64>();
                Ok(ValuePrice { cost, size: costs.len() as u64, schema: None })
            }
            Expr::Call(call) => self.price_call(call),
            Expr::Comprehension(comprehension) => self.price_loop(comprehension),
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => Err("not priced here".to_owned()),
        }
    }

    fn price_call(&mut self, call: &CallExpr) -> Result<ValuePrice, String> {
        let args = call.args.iter().map(|one| self.price(one)).collect::<Result<Vec<_>, _>>()?;
        let target = call.target.as_ref().map(|one| self.price(one)).transpose()?;
        let parts_cost: u64 = args.iter().chain(&target).map(|one| one.cost).sum();
        let share = |size: u64| size.div_ceil(10);
        let (first, second) = (args.first(), args.get(1));
        let size_of = |one: Option<&ValuePrice>| one.map_or(u64::MAX, |one| one.size);
        let own = match call.func_name.as_str() {
            op::LOGICAL_AND | op::LOGICAL_OR => 0,
            op::CONDITIONAL => {
                let cost = args[0].cost.saturating_add(args[1].cost.max(args[2].cost));
                return Ok(ValuePrice { cost, size: args[1].size.max(args[2].size), schema: None });
            }
            op::EQUALS | op::NOT_EQUALS | op::LESS | op::LESS_EQUALS | op::GREATER | op::GREATER_EQUALS => {
                share(size_of(first).min(size_of(second))).max(1)
            }
            op::IN if second.and_then(|of| of.schema.as_ref()).is_some_and(|of| of["type"] == "object") => 1,
            op::IN => size_of(second),
            op::INDEX => {
                let container = first.and_then(|one| one.schema.clone()).unwrap_or_default();
                let below =
                    [&container["additionalProperties"], &container["items"]].into_iter().find(|one| one.is_object());
                let schema = below.cloned().ok_or("an index of what is neither a list nor a map")?;
                return Ok(ValuePrice { cost: parts_cost + 1, size: size(&schema), schema: Some(schema) });
            }
            op::ADD => {
                let sum = size_of(first).saturating_add(size_of(second));
                return Ok(ValuePrice { cost: parts_cost.saturating_add(share(sum)), size: sum, schema: None });
            }
            "matches" => share(size_of(target.as_ref()).saturating_add(1)).saturating_mul(size_of(first).div_ceil(4)),
            "contains" => share(size_of(target.as_ref())).saturating_mul(share(size_of(first))),
            "startsWith" | "endsWith" | "quantity" => share(size_of(first)),
            "string" => return Ok(ValuePrice { cost: parts_cost + 1, size: size_of(first), schema: None }),
            op::LOGICAL_NOT | op::NOT_STRICTLY_FALSE | "size" | "compareTo" => 1,
            other => return Err(format!("{other} has no price here")),
        };
        Ok(plain(parts_cost.saturating_add(own)))
    }

    fn price_loop(&mut self, of: &ComprehensionExpr) -> Result<ValuePrice, String> {
        let range = self.price(&of.iter_range)?;
        let start = self.price(&of.accu_init)?;
        let item = range.schema.as_ref().map_or(json!({}), |schema| schema["items"].clone());
        // The length of a map's keys is unknown and counts as 0.
        let is_list = item.is_object();
        let schema = is_list.then_some(item).filter(|item| item["type"].is_string());
        let one = ValuePrice { cost: 1, size: schema.as_ref().map_or(0, size), schema };
        self.variables.insert(of.iter_var.clone(), one);
        self.variables.insert(of.accu_var.clone(), plain(1));
        let each = self.price(&of.loop_cond)?.cost + self.price(&of.loop_step)?.cost;
        let end = self.price(&of.result)?.cost;
        let cost = (range.cost + start.cost + end).saturating_add(range.size.saturating_mul(each));
        Ok(ValuePrice { cost, size: range.size, schema: None })
    }
}

fn field(of: &ValuePrice, name: &str) -> Result<ValuePrice, String> {
    let schema = of.schema.as_ref().ok_or_else(|| format!("{name} of what has no fields"))?;
    let found = [&schema["properties"][name], &schema["additionalProperties"]].into_iter().find(|one| one.is_object());
    let is_root = schema["properties"]["spec"].is_object();
    let schema = match (name, found) {
        // A root has these fields, whatever its schema says.
        ("metadata", _) if is_root => json!({"type": "object", "properties": {"name": {"type": "string"}}}),
        (_, Some(found)) => found.clone(),
        _ => return Err(format!("undefined field {name}")),
    };
    Ok(ValuePrice { cost: of.cost + 1, size: size(&schema), schema: Some(schema) })
}

/// The problems of a schema's rules, and the cost of all rules.
fn rules(schema: &Value) -> (Vec<String>, u64) {
    let (mut wrong, mut all) = (Vec::new(), 0_u64);
    for SchemaPlace { path, schema, cardinality } in places(schema) {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let text = rule["rule"].as_str().unwrap();
            let cost = price(text, &schema).map(|cost| cost.saturating_mul(cardinality));
            all = all.saturating_add(*cost.as_ref().unwrap_or(&0));
            match cost {
                Err(error) => wrong.push(format!("{path}: {text}: {error}")),
                Ok(cost) if cost > RULE => wrong.push(format!("{path}: {text}: costs {cost}, the limit is {RULE}")),
                Ok(_) => {}
            }
            wrong.extend(wrong_words(rule, &schema).into_iter().map(|error| format!("{path}: {text}: {error}")));
        }
    }
    (wrong, all)
}

fn price(rule: &str, schema: &Value) -> Result<u64, String> {
    let program = Program::compile(rule).map_err(|error| format!("does not compile: {error}"))?;
    CostPricer::new(schema).price(program.expression()).map(|priced| priced.cost)
}

/// Checks that a message is one line, and that its field exists.
fn wrong_words(rule: &Value, schema: &Value) -> Option<String> {
    let message = rule["message"].as_str().unwrap_or_default();
    if message.trim().is_empty() || message.contains('\n') {
        return Some("its message is not one line".to_owned());
    }
    let path = rule["fieldPath"].as_str().unwrap_or_default();
    let place = path.split('.').skip(1).map(|part| format!("/properties/{part}")).collect::<String>();
    schema.pointer(&place).is_none().then(|| format!("its fieldPath {path} does not exist"))
}

#[test]
fn every_rule_compiles_within_its_cost() {
    let (wrong, all) = rules(&super::schema());
    assert_eq!(wrong, Vec::<String>::new());
    assert!(all < ALL, "{all}");
}
