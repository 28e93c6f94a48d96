//! The rules that CPython's compiler has beyond its grammar: where `return`, `yield`, `break`, `continue`, `await` and `nonlocal`
//! may stand, that a parameter has a name of its own, that a star unpacks into something. A cell may `await` at its top level.

use ruff_python_ast::visitor::{self, Visitor};
use ruff_python_ast::{Expr, Mod, Parameters, Stmt};

/// Whether everything stands where it may.
pub(super) fn is_valid(module: &Mod) -> bool {
    let mut rules = Rules {
        scope: Scope::Module,
        in_loop: false,
        functions: 0,
        valid: true,
    };
    if let Mod::Module(module) = module {
        rules.visit_body(&module.body);
    }
    rules.valid
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Module,
    Class,
    Function,
    AsyncFunction,
}

struct Rules {
    scope: Scope,
    in_loop: bool,
    /// How many functions are around this place.
    functions: usize,
    valid: bool,
}

impl Rules {
    fn require(&mut self, rule: bool) {
        self.valid &= rule;
    }

    fn in_function(&self) -> bool {
        matches!(self.scope, Scope::Function | Scope::AsyncFunction)
    }

    fn may_await(&self) -> bool {
        matches!(self.scope, Scope::Module | Scope::AsyncFunction)
    }

    fn inside(&mut self, scope: Scope, in_loop: bool, visit: impl FnOnce(&mut Self)) {
        let before = (self.scope, self.in_loop, self.functions);
        (self.scope, self.in_loop) = (scope, in_loop);
        visit(self);
        (self.scope, self.in_loop, self.functions) = before;
    }

    fn inside_function(&mut self, scope: Scope, visit: impl FnOnce(&mut Self)) {
        self.inside(scope, false, |rules| {
            rules.functions += 1;
            visit(rules);
        });
    }

    fn check_parameters(&mut self, parameters: &Parameters) {
        let mut names = std::collections::HashSet::new();
        for parameter in parameters {
            self.require(names.insert(parameter.name().as_str()));
        }
    }
}

impl<'a> Visitor<'a> for Rules {
    fn visit_stmt(&mut self, stmt: &'a Stmt) {
        match stmt {
            Stmt::FunctionDef(function) => {
                for decorator in &function.decorator_list {
                    self.visit_decorator(decorator);
                }
                self.visit_parameters(&function.parameters);
                let scope = if function.is_async {
                    Scope::AsyncFunction
                } else {
                    Scope::Function
                };
                self.inside_function(scope, |rules| rules.visit_body(&function.body));
            }
            Stmt::ClassDef(class) => {
                for decorator in &class.decorator_list {
                    self.visit_decorator(decorator);
                }
                if let Some(arguments) = &class.arguments {
                    self.visit_arguments(arguments);
                }
                self.inside(Scope::Class, false, |rules| rules.visit_body(&class.body));
            }
            Stmt::For(statement) => {
                self.require(!statement.is_async || self.may_await());
                self.visit_expr(&statement.iter);
                self.visit_expr(&statement.target);
                self.inside(self.scope, true, |rules| rules.visit_body(&statement.body));
                self.visit_body(&statement.orelse);
            }
            Stmt::While(statement) => {
                self.visit_expr(&statement.test);
                self.inside(self.scope, true, |rules| rules.visit_body(&statement.body));
                self.visit_body(&statement.orelse);
            }
            Stmt::With(statement) => {
                self.require(!statement.is_async || self.may_await());
                visitor::walk_stmt(self, stmt);
            }
            Stmt::Return(_) => {
                self.require(self.in_function());
                visitor::walk_stmt(self, stmt);
            }
            Stmt::Break(_) | Stmt::Continue(_) => self.require(self.in_loop),
            Stmt::Nonlocal(_) => {
                let own = usize::from(self.in_function());
                self.require(self.functions > own);
            }
            Stmt::Expr(statement) => {
                self.require(!statement.value.is_starred_expr());
                visitor::walk_stmt(self, stmt);
            }
            Stmt::Assign(statement) => {
                self.require(!statement.value.is_starred_expr());
                visitor::walk_stmt(self, stmt);
            }
            _ => visitor::walk_stmt(self, stmt),
        }
    }

    fn visit_expr(&mut self, expr: &'a Expr) {
        match expr {
            Expr::Lambda(lambda) => {
                if let Some(parameters) = &lambda.parameters {
                    self.visit_parameters(parameters);
                }
                self.inside_function(Scope::Function, |rules| rules.visit_expr(&lambda.body));
            }
            Expr::Yield(_) => {
                self.require(self.in_function());
                visitor::walk_expr(self, expr);
            }
            Expr::YieldFrom(_) => {
                self.require(self.scope == Scope::Function);
                visitor::walk_expr(self, expr);
            }
            Expr::Await(_) => {
                self.require(self.may_await());
                visitor::walk_expr(self, expr);
            }
            _ => visitor::walk_expr(self, expr),
        }
    }

    fn visit_parameters(&mut self, parameters: &'a Parameters) {
        self.check_parameters(parameters);
        visitor::walk_parameters(self, parameters);
    }
}
