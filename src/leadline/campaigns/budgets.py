"""Costs of runs in the unit of a campaign's budget: seconds, core-hours or US dollars."""

import math
import re

from leadline.core.campaigns import Budget, BudgetUnit, Campaign
from leadline.core.errors import InvalidInput
from leadline.core.jobs import ResourceSpec
from leadline.core.units import HOUR_S, format_duration, parse_duration_s

_DOLLARS = re.compile(
    r"(?:US)?\$\s*(?P<before>\d[\d_]*\.?\d*)|(?P<after>\d[\d_]*\.?\d*)\s*(?:USD|\$|dollars?)", re.IGNORECASE
)
_CORE_HOURS = re.compile(r"(?P<amount>\d[\d_]*\.?\d*)\s*core[- ]?h(?:ours?)?", re.IGNORECASE)


def parse_budget(text: str) -> Budget:
    """Parse a budget: ``20m`` (of wall time over all runs), ``3 core-hours`` or ``2.50 USD``.

    Raises:
        InvalidInput: the text has another form, or the amount is not positive.
    """
    if match := _DOLLARS.fullmatch(text.strip()):
        budget = Budget(float(match["before"] or match["after"]), BudgetUnit.USD)
    elif match := _CORE_HOURS.fullmatch(text.strip()):
        budget = Budget(float(match["amount"]), BudgetUnit.CORE_HOURS)
    elif "gpu" in text.lower():
        raise InvalidInput(
            f"the budget is {text!r}, but GPU-hours are no budget: write US dollars with a gpu_hour under [prices]"
        )
    else:
        try:
            budget = Budget(parse_duration_s(text), BudgetUnit.SECONDS)
        except InvalidInput as error:
            forms = '"20m", "3 core-hours" or "2.50 USD"'
            raise InvalidInput(
                f"the budget is {text!r}, which is no amount of one unit: write for example {forms}"
            ) from error
    if not 0 < budget.amount < math.inf:
        raise InvalidInput(f"the budget is {text}, but it must be more than 0")
    return budget


def format_amount(amount: float, unit: BudgetUnit) -> str:
    """Format an amount for people: ``20m 00s``, ``3.00 core-hours``, ``$2.50``, ``$0.0024``."""
    if unit is BudgetUnit.SECONDS:
        return format_duration(amount)
    if unit is BudgetUnit.CORE_HOURS:
        return f"{amount:.3g} core-hours"
    decimals = 2 if amount >= 0.1 or amount <= 0 else 1 - math.floor(math.log10(amount))
    return f"${amount:.{decimals}f}"


def require_prices(campaign: Campaign, budget: Budget) -> None:
    """Refuse a budget in dollars if a resource has no price."""
    if budget.unit is not BudgetUnit.USD:
        return
    prices = {"core_hour": campaign.core_hour, **({"gpu_hour": campaign.gpu_hour} if any(campaign.gpus) else {})}
    missing = [name for name, price in prices.items() if price is None]
    if missing:
        raise InvalidInput(
            f"the budget is in US dollars, but [prices] has no {' and no '.join(missing)}: add what one costs, or give "
            "the budget in time or core-hours"
        )


def compute_cost(campaign: Campaign, resources: ResourceSpec, elapsed_s: float) -> float:
    """Return the cost of ``elapsed_s`` on ``resources`` in the budget's unit; in seconds without a budget.

    A run is charged for its requested cores and GPUs on all nodes, used or not.
    """
    unit = budget_unit(campaign)
    hours = elapsed_s / HOUR_S
    cores = (resources.cores_per_task or 1) * resources.tasks_per_node * resources.nodes
    if unit is BudgetUnit.SECONDS:
        return elapsed_s
    if unit is BudgetUnit.CORE_HOURS:
        return hours * cores
    gpus = resources.gpus_per_node * resources.nodes
    return hours * (cores * (campaign.core_hour or 0.0) + gpus * (campaign.gpu_hour or 0.0))


def budget_unit(campaign: Campaign) -> BudgetUnit:
    """Return the unit of a campaign's costs."""
    return campaign.budget.unit if campaign.budget else BudgetUnit.SECONDS
