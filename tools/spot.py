"""pgspot, helped over what its version 0.9.4 cannot read; it would stop there.

A body in SQL rather than in a string (RETURN .., BEGIN ATOMIC) is bound to its objects when the script runs: it is judged
like any other statement of the script. A search_path of its own would matter only to what a SECURITY DEFINER calls.

A body in PL/pgSQL is read where names in it could be led astray. Where the search_path is safe they cannot, and pgspot's
parser knows no fields of composite variables, nor RETURN NEXT of an expression.

A function in PL/pgSQL may do without a search_path, also one with SECURITY DEFINER, if a line of the comment directly above it
gives the reason, and its body, which is read then, names everything in full:

    -- pgspot: no search_path, because a procedure that commits cannot have one.
"""

import re

from pgspot import cli, visitors
from pgspot.formatters import format_function, format_name

# A statement begins where the one before it ends: with its comments.
EXCEPTION = re.compile(
    r"""(\s* --.*\n)* \s* --\ pgspot:\ no\ search_path,\ because\ \S.*\n (\s* --.*\n)*
        CREATE\ (OR\ REPLACE\ )?(FUNCTION|PROCEDURE)\ (?P<name>[\w.]+)\(""",
    re.VERBOSE,
)

judge_text = visitors.SQLVisitor.visit_CreateFunctionStmt
read_plpgsql = visitors.visit_plpgsql


def is_exception(counter, node):
    found = EXCEPTION.match(counter.sql, counter.stmt_location)
    return found is not None and found["name"] == format_name(node.funcname)


def judge_function(visitor, ancestors, node):
    if node.sql_body is None:
        if is_exception(visitor.state.counter, node):
            if any(option.defname == "set" and option.arg.name == "search_path" for option in node.options):
                visitor.state.unknown(f"Not without a search_path: {format_function(node)}")
            state = visitors.State(visitor.state.counter)
            state.searchpath_secure = False
            read_plpgsql(state, node)
            return None
        return judge_text(visitor, ancestors, node)
    if node.replace:
        visitor.state.warn("PS002", format_function(node))
    if any(option.defname == "security" and option.arg.boolval for option in node.options):
        visitor.state.error("PS003", format_function(node))
    return None  # the visitor goes on into the body by itself


def judge_plpgsql(state, node):
    if not state.searchpath_secure:
        read_plpgsql(state, node)


visitors.SQLVisitor.visit_CreateFunctionStmt = judge_function
visitors.visit_plpgsql = judge_plpgsql
cli.run()
