"""Words that decide what a question asks for, as patterns without case."""

import re
from functools import cache

from leadline.core.units import DAY_S
from leadline.interfaces.chat.language import AMOUNT
from leadline.interfaces.chat.language import NUMBER as N

WORK = r"(?:jobs?|runs?)"


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def says(pattern: str, text: str) -> bool:
    """Tell whether a text matches a pattern."""
    return _compiled(pattern).search(text) is not None


INJECTION = (
    r"\b(?:ignore|disregard|forget|override|bypass|skip|drop|disable|turn off) (?:\w+ ){0,4}(?:rules?|instructions?|prompts?|guidelines|"
    r"restrictions?|limits? you|safety|safeguards?|policy|policies|confirmations?|training|checks?|everything (?:above|before))\b"
    r"|\b(?:system|developer|initial|hidden|secret) (?:prompt|message|instructions?)\b|^\s*\W*(?:system|assistant|developer|admin)\s*[:>\]]"
    r"|\byou are now\b|\bfrom now on,? you\b|\b(?:root|god|admin|developer|debug|dan|sudo|maintenance|unrestricted) mode\b|\bjail-?break"
    r"|\bpretend(?:ing)? (?:that|to|you|job|it|the|we|my)\b|\bact as (?:if|an?|the|root|admin|my)\b|\brole-?play\b|\bsimulate (?:a|the|that)\b"
    r"|\brm -rf?\b|\bsudo\b|\bdrop table\b|\bcurl [^ ]+ ?\||\bwget \S+|/etc/(?:passwd|shadow)|\bchmod\b|;\s*(?:rm|cat|curl|wget|shutdown|scancel)\b"
    r"|\b(?:without|no need (?:for|of)|don'?t|do not|never|no) (?:need (?:to|for) )?(?:asking|ask|my (?:ok|yes|confirmation|approval)|confirm\w*|the (?:user|confirmation)|any (?:confirmation|questions)|waiting for my)\b"
    r"|\b(?:confirmation|approval)s? (?:is|are|was|were|has been|have been)?\s?(?:already )?(?:disabled|given|granted|off|not needed|not required|unnecessary)\b"
    r"|\b(?:i|the user|my pi|admin\w*) (?:have |has |already )*(?:said yes|confirmed|approved|agreed)\b|\balready (?:said yes|confirmed|approved|agreed)\b"
    r"|<\/?(?:script|tool|system|img|function)\b|\btool_call\b|\{\s*\"(?:tool|name|role)\"|\bapi[- ]?keys?\b|\bpasswords?\b|\byour (?:prompt|instructions|rules|token|config)\b"
    r"|\b(?:reveal|print|show|repeat|leak|output) (?:me )?(?:your|the) (?:\w+ )?(?:prompt|instructions|rules|tokens?|secrets?|keys?|configuration)\b"
    r"|\bevery (?:job|user)s? of every\b|\b(?:all|every|other) (?:other )?users?'?s?'? jobs?\b|\bjobs? of (?:all|every|other|another|the other)\b"
    r"|\bwithout (?:a|any) (?:further )?questions?\b|\bdo (?:what|as) (?:it|this|the \w+) (?:says|asks|tells|wants)\b|\b(?:readme|log|file|comment|page|e-?mail|message|output|job name|document|note|config)s? (?:\w+ ){0,4}(?:says?|tells?|orders?|instructs?|asks?|reads?)\b.*\b(?:cancel|submit|delete|ignore|run|execute|assistant)\b|\bnew instructions?\b|\bbase-?64\b|\boverrid(?:e|es|ing|den)\b|\bin your (?:answer|reply),? (?:say|write|claim)\b|\b(?:say|answer|tell (?:him|her|them|everyone)|write|claim|report) that (?:it|the|my|job|they)\b.*\b(?:succeeded|finished|fits|is free|costs?|completed|passed|approved)\b"
    r"|\bas (?:an? |the )?(?:admin\w*|root|superuser|owner of (?:this|the) (?:server|system))\b|\bi am (?:the |an? )?(?:admin\w*|root|your (?:developer|creator|owner|boss))\b"
)
IMPOSSIBLE_VERBS = (
    r"delete|remove|erase|wipe|clear|purge|drop|rename|raise|increase|extend|expand|move|migrate|transfer|copy|rsync|scp|install|uninstall|upgrade|"
    r"update|reboot|restart|requeue|release|pause|suspend|hold|resume|prioriti[sz]e|bump|push|promote|email|e-mail|mail|notify|text|call|ping|message|slack|buy|order|"
    r"book|reserve|write|translate|create|open|log ?in|log me|ssh|connect|set|change|edit|modify|fix|debug|repair|compile|build|upload|download|fetch|"
    r"add|grant|give (?!me\b|us\b)|lend|share|invite|approve|reset|rotate|renew|refund|pay|charge (?:my card|me)|top up|apply for|request (?:an?|more|access)|sign|register|backup|back up|archive|restore|"
    r"remind|schedule a|plot|draw|summari[sz]e|review|teach|sing|tell me a joke|disable|enable|turn (?:on|off)|shut ?down|turn up|lower|reduce the price|cut the price|speed up my|convert|quantize and|merge|train (?:me|yourself|a model (?:of|for|on|that))|label|annotate|clean up|format|mount|unmount|chmod|swap|downgrade|drain|add me|unlock|lock|block|ban|kick|kill the (?:node|server|cluster|process)"
)
IMPOSSIBLE = (
    rf"^(?:\W*(?:hi|hey|hello|ok|okay|so|and|then|now|also|just|please|pls|plz|kindly|quick(?:ly)?|urgent|thanks|great|good|cool|dear \w+)\b[\s,!.:-]*)*(?:{IMPOSSIBLE_VERBS})\b"
    rf"|\b(?:can|could|would|will) (?:you|u)(?: please| pls| also| just| maybe| kindly)* (?:help me (?:to )?)?(?:{IMPOSSIBLE_VERBS})\b"
    rf"|\b(?:please|pls|plz|kindly) (?:just |also )?(?:{IMPOSSIBLE_VERBS})\b|\bi (?:want|need|would like|'d like) (?:you )?to (?:{IMPOSSIBLE_VERBS})\b"
    r"|\b(?:send|shoot|drop) (?:me|us|my|him|her|them|an?|the)\b|\blet me know (?:when|as soon|once|if)\b|\b(?:e-?mail|text|notify|tell|alert|ping|call|wake) me (?:when|as soon|once|if)\b"
    r"|\b(?:more|higher|highest|top|better|lower) priority\b|\bmake (?:my|the|our) (?:job|queue|jobs|cluster|node|network|gpu|model)s? (?:\w+ )?(?:faster|start|jump|go|run (?:first|next|before|earlier)|skip)\b"
    r"|\b(?:jump|skip|cut) the (?:queue|line)\b|\bgive (?:my|our|me) (?:job|jobs|group|more|another|account|user)\b|\bget me (?:more|root|access|an account)\b"
    r"|\b(?:raise|increase|double|extend|lift|change|reset|set|edit|lower) (?:\w+ ){0,3}(?:quota|limit|price|priority|password|allocation|walltime of|time limit (?:of|for) (?:my|the) (?:running|job))"
)
QUALITY = (
    r"\b(?:accurac(?:y|ies)|perplexity|bleu|f1|auc|dice(?: score)?|rmse|(?:validation|test|training|final|eval(?:uation)?) (?:loss|error|score)|converge[sd]?|overfit\w*|learning rate)\b"
)
"""How good a model becomes, which no tool foretells."""
OPERATION = r"\b(?:is|are|was|will|when is|why is) (?:\w+ ){0,3}(?:down|offline|broken|closed|in maintenance|under maintenance|back up|up again|crowded|overloaded)\b|\bmaintenance\b|\boutages?\b"
"""How a system is doing today, which no tool knows."""
TRAINING = r"\b(?:re-?|pre-?)?train(?:s|ing)?\b(?! (?:data|set|samples?|images?|examples?|split|loss|step|steps)\b)|\btraining\b|\bfine[- ]?-?tun(?:e|es|ed|ing)\b|\bq?lora\b|\bfinetun\w*|\bpre-?train\w*"
INFERENCE = (
    r"\binfer(?:ence|encing|ring|s|red)?\b|\bgenerat(?:e|es|ing|ion)\b|\bserv(?:e|es|ing)\b|\bpredict(?:ing|ion|ions)? (?:with|using|on|from)\b|"
    r"\b(?:run|do|make|making|doing|running) (?:some |the |my )?(?:predictions?|forward pass(?:es)?)\b|\bforward pass\b|\bdecod(?:e|ing)\b|\bsampling from\b|\bdeploy(?:ing|ed|ment)?\b"
)
SUBMIT = r"\b(?:re)?submit\w*\b|\b(?:sbatch|qsub)\b|\blaunch\b|\bqueue(?: up)?\b|\bkick off\b|\bstart\b|\benqueue\b|\bschedule\b|\bput\b.*\b(?:in|into|on) the queue\b|\bfire off\b|(?:^|please |pls |you |to |and |hey |hi |ok |can i |let's |lets |now |just )run (?=[`\"']?(?:python|bash|sh |torchrun|accelerate|srun|\./))|\bexecute\b|\bsend\b.*\b(?:off|to|job)\b"
OTHER_THAN_SUBMIT = r"\bhow (?:long|much|many)\b|\bfit\b|\bwhich\b|\bwhy\b|\bcancel\b|\bwhere\b"
CANCEL = r"\b(?:cancel|kill|stop|abort|terminate|scancel|withdraw|get rid of|qdel|halt|nuke|pull the plug|take down|drop|remove .* from the queue)(?:ling|ing|led|ed)?\b"
ALL_JOBS = r"\b(?:all|every|everything|each)\b.*\b(?:jobs?|mine|queued?|running|i (?:have|submitted|started))\b|\bevery ?thing\b|\ball of (?:them|it|my)\b|\bthem all\b|\ball my\b"
IT = r"\b(?:it|that|this|that one|this one|the job)\b"
WHY = r"\bwhy\b|\bhow come\b|\breasons?\b|\bwhat(?:'s| is)? (?:happened|went wrong|caused|the (?:matter|problem|hold-?up|reason|story|cause))\b|\bexplain\b|\bwhat (?:did|has|have) (?:you|leadline|the plane|it) (?:do|done|decided?|change)\b|\bwhat happened\b|\bwhat is (?:it|\S+) waiting for\b|\bwaiting for what\b|\bwhat for\b|\bevent log\b|\bdecisions?\b|\bblocked by\b|\bhistory of job\b|\bwhat keeps\b|\bwhat's keeping\b|\bholding (?:it|\S+) (?:up|back)\b"
LOGS = r"\blogs?\b|\blogfiles?\b|\b(?:std)?(?:out|err)(?:put|or)?\b(?! of memory)(?<!\bout)|\boutput\b|\bstdout\b|\bstderr\b|\bprint(?:s|ed|ing|out)?\b|\blines\b|\btail\b|\bconsole\b|\bmessages? (?:of|from)\b|\btraceback\b|\berror message\b|\bwrote\b|\bsay(?:s|ing)? at the end\b"
STATUS = (
    r"\bstatus\b|\bstate\b|\bprogress\b|\bdone\b|\bfinish(?:ed|es|ing)?\b|\brunning\b|\bruns?\b|\bpending\b|\bwaiting\b|\bstart(?:ed|s|ing)?\b|\bhow (?:far|is|are|'s|much)\b|\bhows\b|"
    r"\bend(?:s|ed)?\b|\bready\b|\beta\b|\bleft\b|\bshow\b|\bcheck\b|\blook at\b|\bwhere is\b|\bwhen\b|\bfail(?:ed)?\b|\balive\b|\bcomplete[ds]?\b|\bcrash(?:ed)?\b|\bqueued?\b|\bover\b|\bcost(?:ing|s)? so far\b|\bwhat(?:'s| is) (?:up|going on)\b|\bwhat about\b|\bdoing\b|\binfo\b|\bdetails\b|\bstuck\b|\bstill\b|\bgoing\b|\bsurviv\w+|\bnews\b|\bupdate\b|\bdie[ds]?\b"
)
STATUS_OF_IT = r"^(?:\W*(?:and|ok|so|then|but|hm+|well|great|thanks)\b[\s,]*)*(?:is|has|did|will|how|when|what'?s?)\b.*\b(?:it|that|the job|now|status|done|left|finish\w*|end|running|started)\b|\bstatus\b|\bhow far\b"
JOB_WORDS = r"\bjobs?\b|\bcancel\b|\bkill(?:ed)?\b|\bstop\b|\babort\b|\blogs?\b|\boutput\b|\bpending\b|\brunning\b|\bqueue[d]?\b|\bwhy\b|\bprint(?:ed|s)?\b|\bstatus\b|\bprogress\b|\bfinish(?:ed)?\b|\blines\b|\bdone\b|\bscancel\b|\bstuck\b|\bwaiting\b|\bhow far\b|\bcampaign\b|\bmodel\b|\bexplain\b|\bstd(?:out|err)\b|\btail\b|\bsweep\b|\bhappened\b|\battempt\b|\bstart(?:ed)?\b|\bprogress\b"
AND = r"^(?:\W*(?:and|what about|how about|ok|okay|so|same|now|then|also|or|but|for|the same|show|what's|hm+|ah|great|thanks|thx|cool|sorry|oh|wait|no|actually|i mean|i meant|rather|make it|just|only)\b)|\?$|\btoo\b|\binstead\b|\balso\b|\bas well\b"
ALSO = r"\btoo\b|\balso\b|\bas well\b|\badd(?:ed|ing)?\b|\bplus\b|\bin addition\b|\badditionally\b|\binclud(?:e|ing)\b|\bnext to\b|\bside by side\b|\balongside\b|\bon top\b|\bthrow in\b|\bcompared? (?:to|with)\b"
INSTEAD = r"\binstead\b|\brather\b|\bonly\b|\bactually\b|\bi meant?\b"
AGAIN = r"\bsame\b|\bagain\b|\bthat\b"
JOB_ONLY = r"\bcancel\b|\bkill\b|\bsubmit\b"

NOT_CAMPAIGNS = (
    r"\b(?:explain|essay|poem|war|wars|military|napoleon\w*|caesar\w*|roman|crusades?|election|political|marketing|advertis\w+|vaccination|ad|president\w*|party|"
    r"fundrais\w+|email|slogan|d&d|dungeons|role-?playing|hannibal\w*|alexander|egypt|russia|gallic|army)\b"
)
CAMPAIGNS = r"\bcampaigns?\b(?! (?:for|against|speech|trail|office|manager|finance|of the (?:party|president|candidate)|ad|ads|poster))(?<!election campaign)(?<!ad campaign)(?<!marketing campaign)(?<!political campaign)(?<!vaccination campaign)"
MODELS = r"\b(?:(?:trained|learned|fitted|saved|prediction|estimator|regression) models?|(?:your|my|own|available) models)\b(?! (?:train|fit |on )\w*)(?!.*\b(?:railway|fashion|toy|car|role)\b)|\bmodels? (?:do you|have you|are there|that (?:you|i|we) (?:have )?(?:trained|built|made|fitted))\b|\bmodel cards?\b|\blist (?:of )?(?:all )?(?:the |my )?models\b|\bmodels? (?:list|overview|card)\b|\bmodels (?:i|we) (?:have|own|trained)\b"
MODEL_CARD = r"\bmodel\b|\bdrift(?:s|ed|ing)?\b|\bcoverage\b|\bcard\b"
RUN_ID = r"\b(?:run|entry) (?:number |no\.? |id |#|nr\.? )?[\"'`#]?((?=[\w-]*\d)[\w-]+)\b|\b(r-?\d{2,})\b"
HISTORY = (
    r"\b(?:past|previous|earlier|old|older|recent|last|latest|former|completed|recorded|finished|my|our|all)(?: \d+)? (?:\w+ )?runs?\b|\bhistor(?:y|ical)\b|\bpredict(?:ed|ions?) (?:vs\.?|versus|against|and|compared? (?:to|with)|with|next to|or|differ\w* from|match\w*) (?:the )?(?:\w+ )?(?:measured|actual|real|reality|true|observed|happened|measurements?)\b|"
    r"\b(?:measured|actual|real|observed) (?:vs\.?|versus|against|and|compared? (?:to|with)) (?:the )?(?:predict(?:ed|ions?)|estimate[ds]?)\b|"
    r"\bhow (?:good|accurate|right|close|well|far off|wrong|reliable|off|bad|precise) (?:are|is|were|was|have|has|did|do) (?:your|the|leadline'?s?|my|our|you)\b.*\b(?:predict\w*|estimat\w*|forecast\w*|guess\w*|past|so far|before|until now)\b|\basked (?:for )?(?:vs\.?|versus|against|and) used\b|\bruns so far\b|\bruns (?:have )?(?:i|we) (?:have )?(?:did|done|made|had)\b|\btrack record\b|\bwhat did i run\b|\bwhat have i run\b|\bpast jobs'? predictions\b|\b\d+ runs\b"
)
NOT_HISTORY = r"\bhistory of (?:the|art|science|computing|music|rome|roman|europe|america|earth|life|germany|france|photography|medicine|philosophy|ohio|evolution|our species|birds?)\b|\bhistory (?:book|class|exam|teacher|essay|lecture|degree|paper)\b|\bnatural history\b|\b(?:browser|medical|search|chat|credit|family|life|fire|climate|evolutionary|geological) history\b"
LIST_JOBS = (
    r"\b(?:my|our|these|the) (?:\w+ ){0,2}(?:jobs|queue)\b|\bjobs (?:of mine|do i have|i have|am i|are (?:running|waiting|pending|queued|still|in)|have (?:ended|finished|failed))\b|\b(?:list|show|see|display|print)(?: me)?(?: all| the| my| of)* (?:\w+ ){0,2}jobs\b|\b(?:any|which|what) (?:\w+ ){0,2}jobs\b(?!.* (?:should|can|could) )|\bdo i have (?:anything|something|any jobs|jobs)\b|\bwhat(?:'s| is| do i have) (?:currently |still )?(?:running|waiting|in the queue|queued|pending)\b|\bwhat am i running\b|\bsqueue\b|\b(?:anything|something) of mine\b|\bhow many jobs\b|\ball jobs\b|\bmy stuff\b.*\b(?:running|queue|doing)\b|\bwhat do i have (?:running|in the queue|queued|waiting)\b|\bis anything (?:of mine )?(?:still )?(?:running|queued|waiting)\b|\b\d+ (?:\w+ )?jobs\b|\bjobs status\b|\bjob (?:list|overview|status)\b|\bhow (?:are|r) my jobs\b|\bjobs\?$"
)
NOT_JOBS = r"\bjob (?:openings?|market|offers?|interview|search|title|description|applications?)\b|\b(?:hiring|salary|career|hire|vacanc\w+|postdoc positions?|other users?|users?'|steve|linkedin|colleague'?s?|labmate'?s?|everyone'?s|everybody'?s|people'?s|others)\b|\buser \w+\b|\bjobs (?:in|at|for) (?:marine|biology|industry|academia|a |tech|data|the (?:us|industry|university))"
ENDED = r"\b(?:all|ended|finished|done|completed|old|past|failed|over|everything|including|also|even|dead|history|last|latest|recent|cancelled|canceled)\b(?! running| my (?:running|waiting|pending))"
LIMIT = (
    rf"\b(?:last|latest|newest|recent|past|first|top|only|just|most recent|at most|max(?:imum)?|up to|no more than|limit(?:ed)?(?: it)?(?: to)?|limit|show|list|about){N}?\s+{N}\b(?! ?(?:gpus?|hours?|days?|h\b|lines|%))".replace(f"{N}?", ""),
    rf"{N} (?:\w+ )?(?:jobs|runs|of them|entries|rows|ones|at most|most recent|newest|latest|of my)\b", rf"\bjust {N}\b", rf"^\W*(?:and |only |the last |last )?{N}\W*$",
)
LIST_WORD = r"(?:list|show|which|what|name|give|tell|see|display|know|have|available|support(?:ed|s)?|all|overview|any|every|how many|got|offer|choose|there|catalog(?:ue)?|database)"
SYSTEM_WORD = r"(?:(?<=every )(?:system|cluster|machine|supercomputer)|systems|clusters|super-?computers|machines|sites|hpcs?|hpc systems|computing centers|centers|centres|facilities|providers|clouds|places)"
DEVICE_WORD = r"(?:(?<=every )(?:gpu|accelerator|device)|devices|gpus|graphics cards|cards|accelerators|gpu (?:types|models|kinds)|hardware|kinds of gpus?|types of gpus?|gpu list|processors|chips|tpus)"
LIST_SYSTEMS = rf"\b{LIST_WORD}\b.*\b{SYSTEM_WORD}\b|\b{SYSTEM_WORD}\b.*\b{LIST_WORD}\b|^\W*{SYSTEM_WORD}\W*(?:please|pls)?\W*$"
LIST_DEVICES = rf"\b{LIST_WORD}\b.*\b{DEVICE_WORD}\b|\b{DEVICE_WORD}\b.*\b{LIST_WORD}\b|^\W*{DEVICE_WORD}\W*(?:please|pls)?\W*$"
NOT_SYSTEMS = (
    r"\b(?:best|cheapest|fastest|buy|purchase|gaming|game|games|solar|nervous|immune|root|star|coffee|washing|vending|slot|voting|credit|business|sewing|birthday|yugioh|pokemon|playing|report|index|garden|"
    r"recommend\w*|should (?:i|we)|laptop|phone|fit|fits|train|run|my model|my (?:script|code|job)|cheaper|faster|how long|how much|invented|price in the shop|shop|mining|crypto\w*|ebay|amazon\.com|drinks|food|fish|potato|galaxy clusters?|star clusters?|operating|user \w+|he|she|linux|windows|medical|ct|mri|exercise|gym)\b"
)
SHOW_SYSTEM = (
    r"\b(?:partitions?|queues?|limits?|longest|max(?:imum|imal)?|walltime|wall time|time limit|prices?|costs?|charges?|rates?|gpus?|cards?|nodes?|cores?|memory|ram|hardware|network|interconnect|scratch|specs?|specifications?|details|about|show|tell me|describe|info(?:rmation)?|what is|what's|what does|which|how many|how much|how long may|how long can|where is|who (?:runs|operates)|rules|policy|policies|accounts?|have|has|offer|look like|quota|allow(?:ed|s)?|hours|source|know|run for|jobs? (?:may|can)|sheet|overview|config(?:uration)?|built|inside)\b"
)
SHOW_DEVICE = (
    r"\b(?:memory|vram|ram|gb|gigs?|bandwidth|flops|tflops|teraflops|tensor cores?|specs?|specifications?|details|about|show|tell me|describe|info(?:rmation)?|what is|what's|what are|how (?:fast|big|much|many|wide)|power|tdp|watts?|watt|support(?:s|ed)?|can (?:an?|the)|does (?:an?|the)|do|has|have|have got|bf16|fp8|fp16|tf32|nvlink|pcie|generation|architecture|peak|clock|compute capability|sms?|cores?|cache|figures?|numbers?|data ?sheet|draw|card|released?|source)\b"
)
FIT = (
    r"\bfit(?:s|ting|ted)?\b(?! (?:the|a) (?:curve|line|regression))|\boom(?:s|ed|ing|'?d)?\b|\bout[- ]of[- ](?:gpu |cuda |device |v?ram )?(?:memory|mem|vram)\b|\bruns? out of\b|\b(?:enough|sufficient) (?:\w+ )?(?:memory|vram|room|ram|space)\b|\btoo (?:big|large|small|much|heavy|tight)\b|\bsqueez\w*|\b(?:is|are|will|would) (?:an?|the|one|\d+)?\s?_+ (?:be )?(?:enough|sufficient)\b|\bbig enough\b|\blarge enough\b|\benough for\b|\bhandle\b|\bcram\b|\bload(?:ed)? (?:on|onto|into)\b|\bhold\b|\bpossible (?:at all )?(?:on|with) (?:an?|one|\d|the)\b|\b(?:make|get) it (?:in|into|onto|smaller)\b|\b(?:shrink|reduce)\b|\bblow(?:s|n)? up\b|\bcrash(?:es|ed|ing)? (?:with|from|for|because of) (?:\w+ )?(?:memory|oom)\b|\bis there (?:enough )?room\b|\bmemory (?:error|overflow)\b|\bexceed\w*|\bsurvive\b|\b(?:is|would|will) .{0,40}\benough\b|\bgo(?:es)? (?:on (?:an?|one)|in|into|onto)\b|\b(?:largest|biggest|highest|max(?:imum|imal)?)(?: possible)? (?:micro-?|mini-?)?batch|\baccommodate\w*|\bcuda (?:error|oom)\b|\bcan (?:i|we|you) (?:even )?(?:put|place|have|load)\b"
)
MEMORY_ONLY = r"\bhow (?:much|many)\b.*\b(?:memory|mem|vram|ram|gb|gib|gigs?|gigabytes|space)\b(?!.*\b(?:fit|fits|enough)\b)"
RECOMMEND = (
    r"\brecommend\w*|\bsuggest\w*|\badvis(?:e|es|ed|able)\b|\badvice\b|\bpropos\w*|\b(?:where|which)(?:'s| is| are| of (?:these|those|them|the)|'d)?\b.{0,60}?\b(?:best|cheapest|fastest|should|shall|better|ideal|optimal|suit\w*|most (?:sensible|suitable|economical)|good (?:place|choice|idea|option)|right|smartest|prefer\w*|wise)\b|\bwhere (?:should|do|can|could|would|shall|to|is|am|will|else|i|we)\b|\b(?:best|cheapest|fastest|right|ideal|optimal|good|better|suitable|sensible|affordable|smartest) (?:\w+ ){0,2}(?:place|system|machine|cluster|gpu|option|choice|way|site|hardware|setup|configuration|config|one|fit|home|spot|target|cloud|card|bet|deal|partition|supercomputer|device)s?\b|\bpick\b|\bchoose\b|\bchoice\b|\bwhat would you (?:use|take|choose|do|pick)\b|\bwhich (?:\w+ ){0,3}(?:should|to use|do i|would you|can (?:do|finish|make|get)|could|would (?:finish|make|be (?:best|cheapest|able))|will (?:finish|make)|gets|makes|finishes|is (?:best|cheapest))\b|\bsend it\b|\bput it\b|\bgo with\b|\bwhat (?:system|machine|cluster|gpu|hardware|setup|configuration|config|site) (?:should|do|can|would|for|is best|gets?|to)\b|\bhelp me (?:choose|decide|pick|find)\b|\bfind (?:me )?(?:a|the|some|somewhere)\b|\bneed a (?:place|system|machine|cluster|home)\b|\blooking for a\b|\bdecide between\b|\b(?:cheapest|fastest) (?:of|among|between)\b|\bwhat's the (?:cheapest|best|fastest|smartest)\b|\bideal (?:place|system)\b"
)
ESTIMATE = (
    r"\bhow (?:long|fast|quick(?:ly)?|slow|many (?:hours|hrs|days|minutes|gpu[- ]hours|tokens|samples|images|gigs|gb|gigabytes|dollars|h)|much|expensive|costly|big|large|heavy)\b|\btime\b|\bruntimes?\b|\brun time\b|\bwall ?time\b|\bduration\b|\bhours\b|\bhrs\b|\bdays\b|\bcosts?\b|\bprices?\b|\bpric(?:ed|ey|ing)\b|\bbill\b|\bexpensive\b|\bcharge[ds]?\b|\bpay\b|\bmemory\b|\bmem\b|\bvram\b|\bram\b|\bgigs\b|\bfootprint\b|\bspeed\b|\bthroughput\b|\blatency\b|\btokens? per second\b|\bestimat\w*|\bpredict\w*|\bforecast\w*|\bcompar\w*|\btakes?\b|\btook\b|\bneeds?\b|\brequire\w*|\bwhen (?:would|will)\b|\bfaster\b|\bslower\b|\bversus\b|\bvs\b|\bspeed ?up\b|\beta\b|\bgpu[- ]hours\b|\bdollars\b|\bquicker\b|\bmoney\b|\bpeak\b|\bconsum\w*|\buse[sd]?\b|\boverhead\b|\bdone\b|\bfinish\w*"
)
OFF_TOPIC = r"\b(?:weather|rain|poem|joke|song|recipe|movie|football|soccer|gaming|restaurant|birthday|vacation|holiday|boyfriend|girlfriend|dog|cat|coffee|pizza|dinner|lunch|breakfast|beer|paper deadline|conference|visa|flight|hotel|bus|doctor|blood|essay|homework|exam)\b"
PER_NODE = r"\beach\b|\bper node\b|\bapiece\b|\ba node\b|/node\b|\bevery node\b|\bin each\b"
NODES = r"(?<![\w.])(\d+)[- ]?(?:\w+ )?nodes?\b(?! ?-?hours)"
COUNTED_GPU = r"(?:(?:nvidia |amd |tesla )?(?:gpus?|cards?|accelerators?|gcds?|tpus?|_+))"
GPUS_BY_NODES = (
    rf"(?<![\w.])(?P<nodes>\d+) (?:\w+ )?nodes?(?:,| and)? (?:of|with|having|w/|x|times|\(|that have|that each have|each with|each having|à|at|and)*\s*\(?(?P<each>\d+)\s?(?:x )?{COUNTED_GPU}",
    rf"(?<![\w.])(?P<each>\d+)\s?(?:x )?{COUNTED_GPU}(?: each)? (?:on|per|in|at|over|across)(?: each of)?(?: the)? (?P<nodes>\d+) (?:\w+ )?nodes?\b(?=.*)",
    r"(?<![\w.])(?P<nodes>\d+)\s?x\s?(?P<each>\d+)\s?(?:x )?(?:gpus?|_+)",
)
GPUS = (
    r"(?<![\w.,])(\d+)\s?(?:x|\*)\s?(?:nvidia |amd )?(?:gpus?\b|_+)", r"(?<![\w.,])(\d+)[- ](?:nvidia |amd |of the |of these |of those |such |more |whole |full )*(?:gpus?|cards?|accelerators?|gcds?|tpus?)\b",
    r"(?<![\w.,])(\d+) (?:nvidia |amd |of the |of these )*_+", r"\b(?:gpus?|ngpus|num_gpus|world size)\s?(?:=|:|of)?\s?(\d+)\b", r"(?<![\w.,])(\d+)gpus?\b",
    r"\bsingle (?:gpu|card)\b()" if False else r"\b(?:take|use|using|have|with|on|over|across|get|had|got) (\d+) of (?:them|these|those)\b", r"(?<![\w.,])(\d+) of them\b",
)
RISKS = (
    (r"(?<![\w.])(\d+(?:\.\d+)?)\s?(?:%|percent|per cent|pct)?[- ](?:\w+ )?(?:risk|chance|probability|odds|likelihood)(?: (?:of|to|that|it)\b)?(?! (?:it|of it)? ?(?:fits|fitting|success))", False),
    (r"\b(?:risk|chance|probability|odds|likelihood)s?\b[\w\s',]{0,60}?(?:=|:|<|<=)?\s?(?<![\w.])(\d+(?:\.\d+)?)\s?(?:%|percent|per cent|pct)", False),
    (r"\brisk(?: level)?(?: of| is| at| set to| below| under| at most)?\s?(?:=|:|<|<=)?\s?(0?\.\d+)", False),
    (r"(?<![\w.])(\d+(?:\.\d+)?)\s?(?:%|percent|per cent|pct)[- ](?:sure|certain(?:ty)?|confiden\w*|safe(?:ty)?|guarantee\w*|reliab\w*|secure)", True),
    (r"\b(?:sure|certain(?:ty)?|confiden\w*|safe) (?:to|of|at|with|by|at least|level|is|=| )*(?<![\w.])(\d+(?:\.\d+)?)\s?(?:%|percent|per cent|pct)", True),
    (r"(?<![\w.])(\d+(?:\.\d+)?)\s?(?:%|percent|per cent|pct)(?!\w)", False),
)  # fmt: skip
ODDS = r"\b(?:1|one|once) (?:in|out of|time in) (?:a )?(\d+)(?: (?:runs|times|cases|tries))?\b|\b1/(\d+)\b"
RISKS_IN_WORDS = (
    (r"\b(?:1|one) (?:in|out of) (?:20|twenty)\b|\b1/20\b", 0.05), (r"\b(?:1|one) (?:in|out of) (?:10|ten)\b|\b1/10\b", 0.1), (r"\b(?:1|one) (?:in|out of) (?:100|a hundred|hundred)\b|\b1/100\b", 0.01),
    (r"\b(?:1|one) (?:in|out of) (?:5|five)\b", 0.2), (r"\b(?:1|one) (?:in|out of) (?:50|fifty)\b", 0.02), (r"\b(?:1|one) (?:in|out of) (?:4|four)\b", 0.25), (r"\b(?:1|one) (?:in|out of) (?:1000|a thousand)\b", 0.001),
)  # fmt: skip
MONEY = (
    (rf"(?:usd|us\$|\$)\s?{AMOUNT}", "USD"), (rf"{N}\s?(?:usd|us dollars?|us\$|dollars?|bucks|\$)", "USD"),
    (rf"(?:eur|€)\s?{AMOUNT}", "EUR"), (rf"{N}\s?(?:eur(?:os?)?|€)", "EUR"), (rf"{N}\s?(?:sus?|service units?|credits? \(su\))\b", "SU"),
    (rf"{N}\s?(?:gbp|pounds?|£)\b", "GBP"), (rf"£\s?{AMOUNT}", "GBP"),
)  # fmt: skip
SUBMIT_NAMES = {
    "account": r"\b(?:account|project|allocation|charged? (?:it )?(?:to|on|against)|bill (?:it )?to|on the (?:account|project) of)(?: (?:is|number|id|code|under|of|to|the|account|project|allocation))*[ :=]+[\"'`]?([A-Za-z][\w-]*\d[\w-]*|[a-z][\w]*-[\w-]+|[A-Z]{2,}[\w-]*)",
    "name": r"\b(?:call(?:ed)?(?: it| this| the job)?|name(?:d)?(?: it| of the job| is| the job| should be| this)?|under the name|job[- ]name|as job)[ :=]+[\"'`]?([\w][\w.-]*[\w])",
}  # fmt: skip
SUBMIT_COUNTS = {
    "cores": (rf"{N}[ -](?:cpu[ -])?(?:cores?|cpus?|threads?|processors?)\b", rf"\b(?:cores|cpus)\s?(?:=|:)?\s?{N}"),
    "attempts": (rf"{N} (?:\w+ )?(?:attempts?|tries|retries|submissions)\b", rf"\b(?:try|retry|submit|attempt|resubmit) (?:it )?(?:up to |at most |max(?:imum)? )?{N} times?\b", rf"\battempts\s?(?:=|:)?\s?{N}", rf"\b(?:up to|at most) {N} times?\b"),
}  # fmt: skip
RESUMES = r"\b(?:can|it|which|that|will|does|and)? ?(?:resume[sd]?|restart(?:s|able)?|continue[sd]?|picks? up|pick up) (?:from|where|by|after|its|itself|on|at)\b|\bresumable\b|\brestartable\b|\bself-?resum\w+|\bresumes\b|\bcan resume\b|\bwrites (?:its own )?checkpoints\b|\bown checkpoints?\b|\bfrom (?:its |the |a )?(?:own |last )?checkpoints?\b"
LOG_COUNTS = {
    "lines": (rf"{N} (?:\w+ )?lines?\b", rf"\btail (?:-n ?|-)?{N}", rf"\blines\s?(?:=|:)?\s?{N}"),
    "attempt": (rf"\b(?:attempt|try)(?: number| no\.?| #)? ?#?{N}", rf"{N}(?:st|nd|rd|th) (?:attempt|try)"),
}
ORDINALS = {"first": 1, "1st": 1, "second": 2, "2nd": 2, "third": 3, "3rd": 3, "fourth": 4, "4th": 4, "fifth": 5, "5th": 5}
TWICE = {"twice": 2, "double": 2, "doubled": 2, "half": 0.5, "halve": 0.5, "halved": 0.5, "triple": 3, "three times": 3, "3 times": 3, "thrice": 3}
SCALED = (
    ("generate", r"\b(?:answers?|outputs?|generat\w+|completions?|replies|responses?)\b"), ("batch", r"\bbatch(?:es)?\b|\bbs\b"),
    ("seq", r"\b(?:context|ctx|seq(?:uence)?s?|prompts?|inputs?)\b"), ("gpus", r"\b(?:gpus?|cards?)\b"), ("epochs", r"\b(?:epochs?|passes)\b"),
    ("samples", r"\b(?:samples|images|pictures|photos|data(?: ?set)?|examples|recordings|files)\b"), ("budget", r"\b(?:budget|money|dollars|euros|cash)\b"),
    ("deadline_s", r"\b(?:time|deadline|hours|days|long)\b"), ("risk", r"\brisk\b"),
)  # fmt: skip
"""Argument → the words for it, when a question says twice as much or half."""
NEGATED = r"(?:instead of|rather than|not(?: with| on| in)?|(?:don'?t|doesn'?t|didn'?t|do not|does not|cannot|can't) (?:want|trust|like|use|need|have)(?: to use)?) (?:the |an? )?[\w.-]+(?: ?\d+ ?gb)?"
CURRENCIES = (("USD", r"\b(?:usd|dollars?|bucks)\b|\$"), ("EUR", r"\beur(?:os?)?\b|€"), ("SU", r"\bsus?\b|\bservice units?\b"), ("GBP", r"\bpounds?\b|£"))
_DEADLINES = ((r"\b(?:by|until|before|for) tomorrow\b", DAY_S), (r"\bwithin the day\b|\bin a day\b", DAY_S), (r"\b(?:in|within) a week\b|\bby next week\b", 7 * DAY_S))


def deadline_in_words(text: str) -> float | None:
    """Return the seconds until a deadline that has no number, such as tomorrow."""
    return next((seconds for pattern, seconds in _DEADLINES if says(pattern, text)), None)


VOCABULARY = frozenset(
    ["takes", "train", "training", "trained", "inference", "recommend", "recommended", "recommendation", "suggest", "memory", "estimate", "estimated", "predict", "predicted", "prediction", "predictions", "measured", "system", "systems", "cluster", "clusters", "machine", "machines", "supercomputers", "device", "devices", "accelerators", "campaign", "campaigns", "history", "models", "partition", "partitions", "finish", "finished", "running", "pending", "waiting", "cancel", "submit", "output", "status", "progress", "cheapest", "fastest", "budget", "deadline", "dollars", "epochs", "batch", "samples", "images", "tokens", "sequence", "length", "precision", "optimizer", "gradient", "checkpointing", "accumulate", "accumulation", "parallel", "pipeline", "tensor", "sharding", "sharded", "quantized", "adapters", "rank", "adamw", "momentum", "adagrad", "rmsprop", "hours", "minutes", "weeks", "days", "risk", "percent", "percentage", "enough", "generate", "generation", "runtime", "duration", "compare", "price", "prices", "account", "attempts", "attempt", "lines", "explain", "where", "which", "should", "would", "could", "long", "much", "fits", "before", "within", "between", "finetune", "finetuning", "steps", "iterations", "workers", "network", "bandwidth", "largest", "longest", "please", "cores", "nodes", "resume", "resumes", "checkpoint", "failed", "killed", "stopped", "queue", "jobs", "limit", "coverage", "errors", "cards", "graphics", "laptop", "workstation", "pascal", "ascend", "pitzer", "owens", "cardinal", "perlmutter", "frontera", "expanse", "anvil", "delta", "stampede3", "done", "kill", "embeddings", "layers", "gpus"]
)
"""Words that are recognized with a slip."""
